// The control channel of ranks that share an arena (processes of one host, or runtimes of one process).
//
// Words are read where their writer put them. Frames travel through the byte rings between rank 0 and every other rank;
// rank 0's channel passes on, in Progress, what two other ranks send each other.
#pragma once

#include <memory>
#include <vector>

#include "net/arena.h"
#include "net/runtime_channel.h"

namespace horocache::net {

// `doorbells`: where each rank sleeps, if not at the arena's own.
std::unique_ptr<RuntimeChannel> MakeShmChannel(std::shared_ptr<Arena> arena, int rank,
                                               std::vector<Doorbell> doorbells = {});

}  // namespace horocache::net
