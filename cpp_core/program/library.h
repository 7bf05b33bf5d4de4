// The programs of a job, proved and packed by Python (horocache/lang/formats/core_words.py), ready to run.
//
// Values; made once, before the ranks bootstrap, and shared by all process sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "program/connection_map.h"
#include "program/program.h"
#include "program/protocol.h"
#include "wire/message.h"

namespace horocache::program {

struct LibraryProgram {
  std::string name;
  wire::Op op = wire::Op::kAllreduce;
  int root = -1;               // -1: the operation has no root
  bool in_rank_order = false;  // true if sums are folded in rank order, or the user accepts any order
  bool required = true;        // true if the job must not start with another number of ranks
  Protocol protocol = Protocol::kAuto;
  int slots = 0;                         // per connection; 0: the backend's default
  int64_t tile_bytes = 0;                // per message; 0: the backend's default
  int64_t min_bytes = 0, max_bytes = 0;  // operations of [min, max) bytes may use it; max 0: no limit
  Program program;
  Wirings wirings;
  bool writes_input = false;  // true if a step stores into the input, and the input is a separate buffer
};

struct Library {
  std::vector<LibraryProgram> programs;
  std::string rules;  // selector rules, appended to the user's rules
  uint64_t hash = 0;  // of all packed bytes

  // Returns the names and the hash ("ring, all_pairs, 1234..."), which the ranks compare in the bootstrap.
  std::string Summary() const;
};

inline constexpr int64_t kMostPrograms = 250;  // Collective::algorithm has one byte

// Returns null for no bytes, and kCorrupt with the program's name for invalid bytes.
StatusOr<std::shared_ptr<const Library>> DecodeLibrary(std::span<const std::byte> bytes);

// The size of a rank's input and output in places. A place has one chunk of each class: the whole tensor of an
// allreduce, one rank's part of an allgather.
struct Places {
  int64_t input = 1, output = 1;
};
Places PlacesOf(wire::Op op, int ranks, int rank, int root);
// How the input and the output of a rank share one buffer.
struct Joined {
  bool joined = false;                        // true if they share one
  int buffer = kInput;                        // the shared one: kInput or kOutput
  int64_t first_input = 0, first_output = 0;  // offsets in it, in places
};
Joined JoinedOf(const LibraryProgram& program, int rank);

}  // namespace horocache::program
