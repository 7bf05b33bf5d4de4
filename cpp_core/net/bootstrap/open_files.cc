#include "net/bootstrap/open_files.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace horocache::net {
namespace {

std::string Limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return "its limit is " + std::to_string(limit.rlim_cur);
}

}  // namespace

bool OutOfFiles(int error) { return error == EMFILE || error == ENFILE; }

std::string ErrorText(int error) {
  const std::string text = std::strerror(error);
  return error == EMFILE ? text + " in this process: " + Limit() + "; raise it (ulimit -n)" : text;
}

Status TooManyFiles(int ranks) {
  return Status(StatusCode::kStartup, "this process may not open more files: " + Limit() + ", start-up of " +
                                          std::to_string(ranks) + " ranks needs about " +
                                          std::to_string(2 * ranks + 8) +
                                          " beside those that are open; raise it (ulimit -n)");
}

}  // namespace horocache::net
