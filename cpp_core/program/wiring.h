// Which strands of the ranks are connected with each other; made once for a program.
//
// Values.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace horocache::program {

// One end of a connection. Ends are numbered on their rank: those that send, and those that receive.
struct Endpoint {
  int32_t peer = -1;     // rank; -1: the strand has no such end
  int32_t here = -1;     // number of this end
  int32_t there = -1;    // number of the other one, on the peer
  int64_t messages = 0;  // that the connection carries for one tile
};

struct Wiring {
  std::vector<Endpoint> out, in;  // by strand
  int32_t num_out = 0, num_in = 0;
};

struct Wirings {
  std::vector<Wiring> ranks;
  int32_t most_ends = 0;      // sending or receiving ones, of one rank
  int64_t most_messages = 0;  // that a connection carries for one tile
};

// The program has been decoded, so every sending strand has the receiving one.
Wirings WireUp(const Program& program);

}  // namespace horocache::program
