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
  // Replaces what is there by an empty array. kInvalidArgument, with the reason, if it cannot be written, or if a file
  // of another kind is where the second copy has to be.
  static StatusOr<std::unique_ptr<TraceFile>> Create(const std::string& path);
  ~TraceFile();  // removes the second copy
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Some elements, with commas between them; their memory is kept, and other memory given for it. After an error the
  // file is as it was before.
  Status Append(std::string* elements);
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
  bool SpareIsOurs() const;
  Status CheckSpare() const;
  Status MakeSpare(Copy* copy);
  bool Exchange() const;
  // Appends pieces of text in the place of the closing bracket, and a new one.
  Status Write(Copy* copy, std::span<const std::string_view> pieces);
  Status WriteAll(const Copy& copy, std::span<iovec> parts) const;
  Status AppendToSpare(std::string_view elements);
  Status Failed(const char* what) const;
  std::string spare_path() const { return path_ + ".spare"; }

  const std::string path_;
  std::array<Copy, 2> copies_;  // the first has the name
  bool exchanges_ = false;
  std::string missing_;  // what the second copy lacks
};

}  // namespace horocache::observe
