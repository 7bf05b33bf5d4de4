#include "base/unique_fd.h"

#include <unistd.h>

#include <cerrno>

namespace horocache {

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.release();
  }
  return *this;
}

void UniqueFd::Close() {
  const int error = errno;  // destructors run between a failure and its message
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  errno = error;
}

}  // namespace horocache
