// Identifies the host of a process: processes of one host can share memory.
#pragma once

#include <string>

namespace horocache::net {

struct Host {
  std::string key;   // equal for two processes iff they can connect over a Unix socket in the directory
  std::string name;  // for messages
};

// The host of this process, by host name, boot and the file system of `directory`. A non-empty `id` replaces all three.
Host FindHost(const std::string& id, const std::string& directory);

}  // namespace horocache::net
