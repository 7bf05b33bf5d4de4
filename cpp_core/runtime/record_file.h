// The file that a rank's flight record goes to.
//
// It may lie in a home directory on a server that does not answer: then the call that writes it returns only when the
// server does, and nothing can end it. So a thread of its own makes the call, and is waited for, but not for ever.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace horocache::runtime {

class RecordFile {
 public:
  static constexpr int64_t kPatienceNs = 3'000'000'000;

  // Makes the folder if need be, and replaces what is there at once; removes what it cannot finish.
  static Status ReplaceFile(const std::string& path, std::string_view bytes);

  // Tests have file systems of their own.
  using Replacer = Status (*)(const std::string& path, std::string_view bytes);
  explicit RecordFile(std::string path, int64_t patience_ns = kPatienceNs, Replacer replace = ReplaceFile)
      : path_(std::move(path)), patience_ns_(patience_ns), replace_(replace) {}
  const std::string& path() const { return path_; }
  // Replaces what is there as a whole: a reader has the old bytes or the new ones. Fails also when that takes longer
  // than the patience, and at once while an earlier call still hangs.
  Status Replace(std::string bytes);

 private:
  // Shared with the thread, which may outlive this.
  struct Writing {
    Writing(std::string path_in, std::string bytes_in) : path(std::move(path_in)), bytes(std::move(bytes_in)) {}
    const std::string path;
    const std::string bytes;
    Status status;
    std::atomic<uint32_t> done{0};
  };

  const std::string path_;
  const int64_t patience_ns_;
  const Replacer replace_;
  std::shared_ptr<Writing> hanging_;  // the thread of which has been given up
};

}  // namespace horocache::runtime
