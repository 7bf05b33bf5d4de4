// The connections between the thread blocks of the ranks; computed once per program.
//
// Values.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace horocache::program {

// One end of a connection. Each rank numbers its sending ends and its receiving ends, each from 0.
struct Endpoint {
  int32_t peer = -1;     // rank; -1: the thread block has no such end
  int32_t here = -1;     // number of this end
  int32_t there = -1;    // number of the other end, on the peer
  int64_t messages = 0;  // messages of the connection per tile
};

struct Wiring {
  std::vector<Endpoint> out, in;  // by thread block
  int32_t num_out = 0, num_in = 0;
};

struct Wirings {
  std::vector<Wiring> ranks;
  int32_t most_ends = 0;      // largest number of sending or of receiving ends on one rank
  int64_t most_messages = 0;  // most messages of a connection per tile
};

// Requires a decoded program: the decoder has checked that both ends of every connection exist.
Wirings WireUp(const Program& program);

}  // namespace horocache::program
