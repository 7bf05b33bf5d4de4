// A file with an array of JSON that grows, and is whole at any moment.
//
// Note [Two copies of a trace]
// A file that is appended to is torn for a moment: between the bytes that take the closing bracket's place and the new
// bracket, a process can be killed and another can read. So there are two copies. What is new is appended to the one
// without a name that anybody reads, and then one system call exchanges the names of the two (renameat2). A reader gets
// one that is whole, and so does who comes after a kill, which leaves the second copy behind: PATH.spare. Where the
// kernel or the file system cannot exchange names, and where the path is no regular file, there is one copy, and
// exchanges() is false.
//
// One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"

namespace horocache::observe {

class TraceFile {
 public:
  // Replaces what is there by an empty array. kInvalidArgument, with the reason, if it cannot be written.
  static StatusOr<std::unique_ptr<TraceFile>> Create(const std::string& path);
  ~TraceFile();  // removes the second copy
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Some elements, with commas between them. After an error the file is as it was before.
  Status Append(std::string_view elements);
  bool exchanges() const { return exchanges_; }
  // For the child of a fork: nothing but close(2).
  void CloseInChild();

 private:
  struct Copy {
    UniqueFd fd;
    int64_t end = 0;  // where the closing bracket begins
  };

  explicit TraceFile(std::string path) : path_(std::move(path)) {}
  Status Open();
  Status MakeSpare(Copy* copy);
  bool Exchange() const;
  // The text has the closing bracket while it is written.
  Status Write(Copy* copy, std::string* text);
  Status WriteAll(const Copy& copy, std::string_view bytes) const;
  Status AppendToSpare();
  Status Failed(const char* what) const;
  std::string spare_path() const { return path_ + ".spare"; }

  const std::string path_;
  std::array<Copy, 2> copies_;  // the first has the name
  bool exchanges_ = false;
  bool empty_ = true;
  std::string news_;     // kept for its memory
  std::string missing_;  // what the second copy lacks
};

}  // namespace horocache::observe
