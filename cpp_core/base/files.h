// Files of horocache in folders that other users may write to as well.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace horocache {

// Creates the file, for writing. An existing file of that name (of a process that was killed, or a FIFO or a link of
// another user) is removed, and never opened. An error if it cannot be removed.
StatusOr<UniqueFd> MakeFile(const std::string& path, mode_t mode);

// The path with all links resolved. The kernel follows the links, and has a rule for folders that all users may write
// to (protected_symlinks). That rule is kept here even where the kernel has it switched off: a link that another user
// has put there is an error.
StatusOr<std::string> ResolvePath(const std::string& path);

}  // namespace horocache
