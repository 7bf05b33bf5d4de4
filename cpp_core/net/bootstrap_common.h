// Small things that both halves of start-up use.
#pragma once

#include <cstdint>

#include "net/bootstrap.h"
#include "net/handshake.h"

namespace horocache::net {

Hello OwnHello(const BootstrapConfig& config);
UniqueFd OpenPidfd(int pid);          // -1 where the kernel has none or a container forbids it
int PollTimeoutMs(int64_t until_ns);  // rounded up, so that the time has come when poll returns

// How long start-up may wait before it asks BootstrapConfig::check again; and the question.
int64_t NextCheckNs(const BootstrapConfig& config);
Status Check(const BootstrapConfig& config);

}  // namespace horocache::net
