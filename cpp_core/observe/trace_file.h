// A file with a growing JSON array that is complete at any moment.
//
// Note [Two copies of a trace]
// A file that is appended to is incomplete for a moment: between the bytes that take the place of the closing bracket
// and the new closing bracket, the process may be killed, and another process may read the file. So there are two
// copies. New elements are appended to the second copy, PATH.spare, which no program reads; then one system call
// (renameat2) exchanges the names of the two. So every reader gets a complete file, also after a kill, which leaves the
// second copy behind. If the kernel or the file system cannot exchange names, or if the path is not a regular file,
// there is one copy, and exchanges() is false.
//
// Threads: one at a time.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"

namespace horocache::observe {

class TraceFile {
 public:
  // Replaces the file at `path` by an empty array. kInvalidArgument, with the reason, if it cannot be written, or if
  // the place of the second copy is taken by a file of another kind.
  static StatusOr<std::unique_ptr<TraceFile>> Create(const std::string& path);
  ~TraceFile();  // removes the second copy
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Appends `*elements`, which are separated by commas, and takes their memory: the string has unspecified content
  // afterwards, and other memory that can be used again. After an error the file is as it was before.
  Status Append(std::string* elements);
  bool exchanges() const { return exchanges_; }
  // For the child of a fork: closes the descriptors and does nothing else.
  void CloseInChild();

 private:
  struct Copy {
    UniqueFd fd;
    int64_t end = 0;  // offset of the closing bracket
  };

  explicit TraceFile(std::string path) : path_(std::move(path)) {}
  Status Open();
  bool SpareIsOurs() const;
  Status CheckSpare() const;
  Status MakeSpare(Copy* copy);
  bool Exchange() const;
  // Writes `pieces` in place of the closing bracket, and a new closing bracket after them.
  Status Write(Copy* copy, std::span<const std::string_view> pieces);
  Status WriteAll(const Copy& copy, std::span<iovec> parts) const;
  Status AppendToSpare(std::string_view elements);
  Status Failed(const char* what) const;
  std::string spare_path() const { return path_ + ".spare"; }

  const std::string path_;
  std::array<Copy, 2> copies_;  // the first has the name `path`, the second is the spare copy
  bool exchanges_ = false;
  std::string missing_;  // elements that the second copy lacks
};

}  // namespace horocache::observe
