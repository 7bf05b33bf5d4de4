// The control channel of ranks that share an arena (processes of one host, or runtimes of one process).
//
// Readers read words where their writer stored them. Frames travel through the frame rings between rank 0 and every
// other rank. Rank 0 forwards the frames that two other ranks send each other, in Progress and Receive.
#pragma once

#include <memory>
#include <vector>

#include "net/runtime_channel.h"
#include "net/shm/arena.h"

namespace horocache::net {

// `doorbells`: each rank's doorbell, by rank; empty: the arena's own.
std::unique_ptr<RuntimeChannel> MakeShmChannel(std::shared_ptr<Arena> arena, int rank,
                                               std::vector<Doorbell> doorbells = {});

}  // namespace horocache::net
