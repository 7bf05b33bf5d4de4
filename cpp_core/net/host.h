// Which processes are on one host, that is, can share memory with each other.
#pragma once

#include <string>

namespace horocache::net {

struct Host {
  std::string key;   // equal for two processes iff they can meet on a Unix socket of the directory
  std::string name;  // for messages
};

// This process's, by host name, boot and the file system that `directory` is on; `id`, if it is not empty, stands for
// all of that.
Host FindHost(const std::string& id, const std::string& directory);

}  // namespace horocache::net
