// The file to which a rank writes its flight record.
//
// The file may lie on a file server that does not answer. Then the call that writes it hangs until the server answers,
// and cannot be cancelled. So a separate thread makes the call, and Replace waits for it with a time limit.
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

  // Creates the folder if necessary, writes a new file and renames it to `path`. Removes the new file on failure.
  static Status ReplaceFile(const std::string& path, std::string_view bytes);

  // The function that replaces the file; tests pass others.
  using Replacer = Status (*)(const std::string& path, std::string_view bytes);
  explicit RecordFile(std::string path, int64_t patience_ns = kPatienceNs, Replacer replace = ReplaceFile)
      : path_(std::move(path)), patience_ns_(patience_ns), replace_(replace) {}
  const std::string& path() const { return path_; }
  // Replaces the file as a whole: a reader sees the old bytes or the new ones. Fails if that takes longer than
  // `patience_ns`, and at once while an earlier call still hangs.
  Status Replace(std::string bytes);

 private:
  // One write, shared with its thread, which may outlive this object.
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
  std::shared_ptr<Writing> hanging_;  // the write whose thread was abandoned; null: none
};

}  // namespace horocache::runtime
