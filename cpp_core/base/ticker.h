// A thread that calls a function again and again.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "base/thread.h"

namespace horocache {

class Ticker {
 public:
  // Calls `tick` every `every_ns`, until the object ends. A tick that throws is lost; the next one comes. Throws
  // std::system_error if no thread can be made.
  Ticker(const std::string& name, int64_t every_ns, std::function<void()> tick);
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  NamedThread thread_;  // last: joined first
};

}  // namespace horocache
