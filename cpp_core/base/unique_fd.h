// File descriptors whose numbers are checked before use: they may stand for another file by then.
//
// Note [Checking descriptors before use]
// A program may close descriptors that it does not know (os.closerange, daemonizing code) and open files of its own
// under the same numbers. So a descriptor that horocache keeps for long is checked before it is used: horocache reads,
// writes or closes it only if it is still the same file. The kernel gives sockets, files and pipes identities of their
// own. Eventfds and (before Linux 6.9) pidfds share one identity, so they can be told from all other files, but not
// from each other.
#pragma once

#include <sys/types.h>

namespace horocache {

// The identity of the open file that a descriptor stands for.
class FileIdentity {
 public:
  FileIdentity() = default;  // no file
  explicit FileIdentity(int fd);
  // True if `fd` still stands for this file.
  bool Is(int fd) const;

 private:
  bool known_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  mode_t kind_ = 0;
};

// Owns a file descriptor and closes it, unless its number stands for another file by then.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd), identity_(fd) {}
  ~UniqueFd() { Close(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.fd_), identity_(other.identity_) { other.fd_ = -1; }
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  int get() const { return fd_; }
  // True if there is a descriptor and the program has not closed it.
  bool intact() const { return identity_.Is(fd_); }
  // Does not close the descriptor if its number stands for another file by now.
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
