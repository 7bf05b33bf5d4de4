#include "base/ticker.h"

#include <chrono>
#include <exception>
#include <utility>

namespace horocache {

Ticker::Ticker(const std::string& name, int64_t every_ns, std::function<void()> tick)
    : thread_(name, [this, every_ns, tick = std::move(tick)] {
        std::unique_lock lock(mutex_);
        while (!changed_.wait_for(lock, std::chrono::nanoseconds(every_ns), [this] { return over_; })) {
          try {
            tick();
          } catch (const std::exception&) {  // no memory, for instance: the next tick tries again
          }
        }
      }) {}

Ticker::~Ticker() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
}

}  // namespace horocache
