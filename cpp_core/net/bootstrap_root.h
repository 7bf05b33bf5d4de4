// Rank 0's half of start-up. See bootstrap.h.
//
// Note [Start-up]
// Every other rank connects and says hello with its handshake and its pidfd. When all are there and agree, rank 0
// offers the arena, all pids and all pidfds; each attaches and says that it is ready, or why not. When all are, rank 0
// gives the verdict. So a rank that returns from start-up knows that every other one can. Whatever fails, the verdict
// is the same Status on every rank that is connected; rank 0 waits a moment for those that are about to connect, so
// that they hear it too.
#pragma once

#include <memory>

#include "base/status.h"
#include "net/bootstrap.h"
#include "net/rendezvous.h"

namespace horocache::net {

StatusOr<Peers> BootstrapRoot(const BootstrapConfig& config, std::unique_ptr<Listener> listener, int64_t deadline_ns);

}  // namespace horocache::net
