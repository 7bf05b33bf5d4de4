#include "base/unique_fd.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace horocache {

FileIdentity::FileIdentity(int fd) {
  if (fd < 0) return;
  const int error = errno;
  struct stat about{};
  known_ = fstat(fd, &about) == 0;
  errno = error;
  device_ = about.st_dev;
  inode_ = about.st_ino;
  kind_ = about.st_mode & S_IFMT;
}

bool FileIdentity::Is(int fd) const {
  const FileIdentity other(fd);
  return known_ && other.known_ && device_ == other.device_ && inode_ == other.inode_ && kind_ == other.kind_;
}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    Close();
    identity_ = other.identity_;
    fd_ = other.release();
  }
  return *this;
}

void UniqueFd::Close() {
  const int error = errno;  // kept: destructors run between a failure and its message
  if (intact()) close(fd_);
  fd_ = -1;
  errno = error;
}

}  // namespace horocache
