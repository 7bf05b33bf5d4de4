// How a process ended, as far as the kernel shows it to a process that is not its parent.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace horocache::net {

// Describes the end of a process whose pidfd has become readable: "was killed by signal 9 (SIGKILL)", "exited with code
// 3 without shutdown()", or "exited without shutdown()" if the kernel does not show the status. `pidfd` may be -1.
std::string DescribeEnd(int pidfd, int pid);

// The exit status in the text of /proc/<pid>/stat, whose last field it is; none if the process has not ended.
std::optional<int> ExitStatusIn(std::string_view stat);

}  // namespace horocache::net
