// How a process ended, as far as the kernel tells somebody who is not its parent.
#pragma once

#include <string>

namespace horocache::net {

// For a process whose pidfd has become readable: "was killed by signal 9 (SIGKILL)", "exited with code 3 without
// shutdown()", or "exited without shutdown()" where the kernel does not tell.
std::string DescribeEnd(int pidfd, int pid);

}  // namespace horocache::net
