// Rank 0's side of start-up. See bootstrap.h.
//
// Note [Start-up]
// Every other rank connects and sends a hello with its handshake and its pidfd. When all have connected and agree, rank
// 0 offers the arena, all pids and all pidfds. Each rank attaches and answers that it is ready, or why not. When all
// are ready, rank 0 sends the outcome Ok (kOutcome). So a rank that returns from start-up knows that every other rank
// can start. If anything fails, every connected rank gets the same Status as the outcome. Rank 0 waits a moment for
// ranks that are about to connect, so that they get it, too.
#pragma once

#include <memory>

#include "base/status.h"
#include "net/bootstrap/bootstrap.h"
#include "net/bootstrap/unix_rendezvous.h"

namespace horocache::net {

StatusOr<Peers> BootstrapRoot(const BootstrapConfig& config, std::unique_ptr<Listener> listener, int64_t deadline_ns);

}  // namespace horocache::net
