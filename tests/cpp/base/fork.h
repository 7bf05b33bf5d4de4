// fork() for tests, which wait for a child by its pid, and kill by it.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace horocache {

// fork(), but a failure ends the test: its -1 would mean every process to kill(), and any child to waitpid().
inline pid_t Fork() {
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  return child;
}

}  // namespace horocache
