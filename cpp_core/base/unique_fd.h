// File descriptors that are known by more than their number.
//
// Note [Descriptors of ours]
// A program may close descriptors that it does not know (os.closerange, daemonizing code) and open files of its own
// under the same numbers. So what is kept for long is looked at before it is used: nothing is read from, written into
// or closed that is not the file it was. The kernel gives sockets, files and pipes identities of their own; eventfds
// and (before Linux 6.9) pidfds share one, and are told from everything else, but not from each other.
#pragma once

#include <sys/types.h>

namespace horocache {

// Which open file a number stands for.
class FileIdentity {
 public:
  FileIdentity() = default;  // none
  explicit FileIdentity(int fd);
  // Whether `fd` still stands for it.
  bool Is(int fd) const;

 private:
  bool known_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  mode_t kind_ = 0;
};

// A file descriptor that closes itself, and nobody else's.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd), identity_(fd) {}
  ~UniqueFd() { Close(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.fd_), identity_(other.identity_) { other.fd_ = -1; }
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  int get() const { return fd_; }
  // There is one, and the program has not closed it.
  bool intact() const { return identity_.Is(fd_); }
  // Does nothing where the number stands for something else by now.
  void Close();
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_ = -1;
  FileIdentity identity_;
};

}  // namespace horocache
