// Files with names of ours, in folders that others may write to as well.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace horocache {

// Makes the file, for writing. What had the name (of a process that was killed, or a FIFO or a link that somebody left)
// is removed, and never opened; an error if it cannot be.
StatusOr<UniqueFd> MakeFile(const std::string& path, mode_t mode);

// Where the path leads. The kernel follows the links, and with it its rule for folders that all may write to
// (protected_symlinks), which is kept here also where it is off: a link that another user has put there is an error.
StatusOr<std::string> ResolvePath(const std::string& path);

}  // namespace horocache
