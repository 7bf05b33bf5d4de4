// One run of a program on one rank: the thread blocks (`ThreadBlock`) are state machines that are advanced in turns.
//
// Note [Thread blocks are polled]
// A thread block begins a step when the steps that it waits for are done and, if the step pops, its message has
// arrived. It goes on to the next step after the push. A step that pops and pushes pops first, because the slot that it
// frees may be the one that all ranks wait for. If the push has to wait, the value stays where the step stored it, or
// in memory of the thread block. A condition that a thread block waits for stays true once it is true, so the polling
// order does not matter, and a run gets stuck only if the program does.
//
// Note [Tiles]
// A message must fit into a slot, so chunks are cut into tiles. A thread block runs all its steps for the first tile,
// then all for the second one, and so on. The tiles of a chunk are disjoint memory, also in scratch, so they need no
// order beyond that of each thread block.
//
// Threads: the driving thread. Ownership: none of the memory; the program must outlive the run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/kernels/fold.h"
#include "program/chunk_layout.h"
#include "program/connections.h"
#include "program/program.h"

namespace horocache::program {

// Inputs of a run.
struct RunSite {
  const Program* program = nullptr;
  int rank = 0;
  Sizes sizes;
  data::FoldFunction fold = nullptr;  // null for programs that do not reduce
  std::vector<std::byte*> buffers;    // by number; each has at least BufferBytes bytes
  Connections* connections = nullptr;
  int64_t tile_elements = 1;
  data::Scaling finish;  // applied to sums by the steps that finish them
};

// Returns the most elements of a fine chunk in one message of `message_bytes` bytes. Equal on all ranks, so that they
// cut messages alike.
int64_t TileElements(const Program& program, const Sizes& sizes, int64_t message_bytes);
// Returns the number of tiles of the largest fine chunk.
int64_t TilesOf(const Sizes& sizes, int64_t tile_elements);

// Returns the bytes of a rank's buffer.
int64_t BufferBytes(const RankProgram& program, int buffer, const Sizes& sizes);

class Execution {
 public:
  explicit Execution(RunSite site);

  // Advances the thread blocks by about `*budget` bytes at most, and reduces the budget. Returns true if any advanced.
  bool Advance(int64_t* budget);
  // True if all steps are done and no receiver will read this rank's buffers any more.
  bool finished() const { return running_ == 0 && direct_.empty(); }
  // For reports: one line for each unfinished thread block, with the reason of its wait; at most `most` lines.
  std::vector<std::string> Blocked(size_t most) const;
  // Adds the ranks from which a message, a free slot or the end of a direct read is awaited.
  void AddWaitingFor(std::vector<int>* ranks) const;

 private:
  enum class Wait { kNone, kStep, kMessage, kSlot, kReader };
  struct State {
    int64_t tile = 0;
    uint32_t step = 0;
    bool popped = false;  // true if the step has popped its message and still has to push
    Wait wait = Wait::kNone;
    uint64_t pushed = 0;          // number of messages
    std::vector<std::byte> held;  // the value to push, if it is stored nowhere else
  };
  // A direct message that its receiver may still read in this rank's buffers.
  struct DirectMessage {
    int thread_block = 0;
    uint64_t number = 0;
    const std::byte* memory = nullptr;
    int64_t bytes = 0;
  };
  // Contiguous elements: the part of a fine chunk in one tile.
  struct Run {
    int64_t offset = 0;  // in the message, in elements
    int64_t begin = 0;   // within the fine chunk
    int64_t count = 0;
  };

  // Message and slot of a step that can run.
  struct Due {
    int64_t bytes = 0;                   // of the message
    const std::byte* message = nullptr;  // the message to pop
    std::byte* slot = nullptr;           // for the message to push
    bool keeps = false;                  // true if no slot is free, so that the push has to wait
  };

  bool AdvanceThreadBlock(size_t thread_block, int64_t* budget);
  bool CanRun(size_t thread_block, const Step& step, Due* due);
  // Returns true when the step is done.
  bool RunStep(size_t thread_block, int64_t* budget);
  // The same for a step that has popped and waits for a slot.
  bool PushKept(size_t thread_block, const Step& step, int64_t* budget);
  static bool Block(State* state, Wait wait) {
    state->wait = wait;
    return false;
  }
  bool Ready(size_t thread_block, const Step& step) const;
  int64_t Done(size_t thread_block, int64_t tile, uint32_t step) const;
  // Returns the memory at `place` if the receiver can read the message there; else null.
  const std::byte* DirectAt(size_t thread_block, const Place& place, const Step& step, int64_t bytes) const;
  // Pushes the message at `memory` as a direct message; returns false if `memory` is null.
  bool PushDirect(size_t thread_block, const std::byte* memory, int64_t bytes);
  // Returns the memory of the step's tile at `place`; null if it is empty or not contiguous.
  const std::byte* OnePiece(const Place& place, const Step& step, int64_t tile) const;
  void Push(size_t thread_block, int64_t bytes);
  // Takes direct messages back from the step's destination. Returns true if no receiver reads there, now or later.
  bool RetractDirect(const Step& step, int64_t tile);
  bool ForgetPopped();
  // Does the step except for waiting: reads message and memory, stores, and fills `slot` if it is not null. Stores to
  // memory go through the caches, because the stored values are read soon.
  void Work(size_t thread_block, const Step& step, const std::byte* message, std::byte* slot);
  // Copies the value that the step has stored at its destination into `slot`.
  void Collect(size_t thread_block, const Step& step, std::byte* slot) const;
  Run RunOf(const Step& step, int64_t tile, int64_t index, int64_t offset) const;
  std::byte* At(const Place& place, int64_t index, int64_t begin) const;
  int64_t MessageBytes(const Step& step, int64_t tile) const;
  bool Streams(size_t thread_block) const { return site_.connections->streams(static_cast<int>(thread_block)); }

  const RunSite site_;
  const RankProgram& program_;
  const int64_t element_bytes_;
  const int64_t tile_elements_, tiles_;
  std::vector<State> states_;
  size_t running_ = 0;
  std::vector<DirectMessage> direct_;
};

}  // namespace horocache::program
