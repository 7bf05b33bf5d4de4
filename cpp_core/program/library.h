// The programs of a job, as Python has proved and packed them (horocache/lang/packed.py), ready to run.
//
// Values; made once, before the ranks meet, and shared by all process sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "program/program.h"
#include "program/protocol.h"
#include "program/wiring.h"
#include "wire/message.h"

namespace horocache::program {

struct LibraryProgram {
  std::string name;
  wire::Op op = wire::Op::kAllreduce;
  int root = -1;               // -1: the operation has none
  bool in_rank_order = false;  // or its user does not mind
  bool required = true;        // the job does not start with another number of ranks
  Protocol protocol = Protocol::kAuto;
  int slots = 0;                         // of a connection; 0: as the backend likes
  int64_t tile_bytes = 0;                // of a message; the same
  int64_t min_bytes = 0, max_bytes = 0;  // sizes that it is meant for; max 0: no limit
  Program program;
  Wirings wirings;
  bool writes_input = false;  // some step stores into an input that is a buffer of its own
};

struct Library {
  std::vector<LibraryProgram> programs;
  std::string rules;  // of the selector, which stand behind the user's
  uint64_t hash = 0;  // of everything

  // "ring, all_pairs (1a2b...)": what ranks compare when they meet.
  std::string Summary() const;
};

inline constexpr int64_t kMostPrograms = 250;  // a choice has one byte for them

// Null for no bytes. kCorrupt, naming the program, if they cannot be.
StatusOr<std::shared_ptr<const Library>> DecodeLibrary(std::span<const std::byte> bytes);

// Chunks of each class in a rank's input and output.
struct Places {
  int64_t input = 1, output = 1;
};
Places PlacesOf(wire::Op op, int ranks, int rank, int root);
// Whether input and output of the rank are one buffer, which of the two, and where in it they begin, in such chunks.
struct Joined {
  bool joined = false;
  int buffer = kInput;
  int64_t first_input = 0, first_output = 0;
};
Joined JoinedOf(const LibraryProgram& program, int rank);

}  // namespace horocache::program
