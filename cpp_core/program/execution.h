// One run of a program on one rank: strands as state machines that are advanced in turns.
//
// Note [Strands are polled]
// A strand begins a step when what it waits for is over, when a message is there if it pops one, and goes on to the
// next when it has pushed. What pops and pushes pops first: the slot that it empties may be what everybody waits for.
// If the push has to wait, the value is kept where it was stored, or in memory of the strand's. All that strands wait
// for stays true, so the order in which they are polled does not matter, and a run is stuck only if the program is.
//
// Note [Tiles]
// Messages are as long as slots, so chunks are cut into tiles; a strand runs all its steps for the first tile, then for
// the second. Tiles of one chunk are different memory, also in scratch, so nothing orders them but each strand.
//
// Role: that of the lane. Ownership: none of the memory; the program outlives the run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/kernels/fold.h"
#include "program/connections.h"
#include "program/program.h"
#include "program/sizes.h"

namespace horocache::program {

// What a run works on.
struct RunSite {
  const Program* program = nullptr;
  int rank = 0;
  Sizes sizes;
  data::FoldFunction fold = nullptr;  // null for programs that do not reduce
  std::vector<std::byte*> buffers;    // by number; of at least the bytes that BufferBytes tells
  Connections* connections = nullptr;
  int64_t tile_elements = 1;
  data::Scaling finish;  // of sums, by the steps that finish them
};

// Elements of a fine chunk that travel in one message, at most, if messages have so many bytes. The same on all ranks:
// messages are cut alike.
int64_t TileElements(const Program& program, const Sizes& sizes, int64_t message_bytes);
// How often a fine chunk is cut.
int64_t TilesOf(const Sizes& sizes, int64_t tile_elements);

// Bytes that a buffer of a rank has.
int64_t BufferBytes(const RankProgram& program, int buffer, const Sizes& sizes);

class Execution {
 public:
  explicit Execution(RunSite site);

  // Moves strands on, by about so many bytes at most; true if anything moved.
  bool Advance(int64_t* budget);
  // Also nobody reads this rank's buffers any more.
  bool finished() const { return running_ == 0 && direct_.empty(); }
  // For reports: a line for each strand that is not at its end, with what it waits for; at most `most`.
  std::vector<std::string> Blocked(size_t most) const;
  // Ranks of which a message or a free slot is awaited.
  void AddWaitingFor(std::vector<int>* ranks) const;

 private:
  enum class Wait { kNone, kStep, kMessage, kSlot, kReader };
  struct State {
    int64_t tile = 0;
    uint32_t step = 0;
    bool popped = false;  // the step's message was taken, and is to be pushed
    Wait wait = Wait::kNone;
    uint64_t pushed = 0;          // messages
    std::vector<std::byte> held;  // what was popped and is stored nowhere
  };
  // A message that its receiver may read in this rank's buffers.
  struct DirectMessage {
    int strand = 0;
    uint64_t number = 0;
    const std::byte* memory = nullptr;
    int64_t bytes = 0;
  };
  // Some elements, side by side, of a tile of a fine chunk.
  struct Run {
    int64_t offset = 0;  // in the message, in elements
    int64_t begin = 0;   // within the fine chunk
    int64_t count = 0;
  };

  // What a step has that can run.
  struct Due {
    int64_t bytes = 0;                   // of its message
    const std::byte* message = nullptr;  // that it pops
    std::byte* slot = nullptr;           // for that which it pushes
    bool keeps = false;                  // there is none yet
  };

  bool AdvanceStrand(size_t strand, int64_t* budget);
  bool CanRun(size_t strand, const Step& step, Due* due);
  // True when the step is over.
  bool RunStep(size_t strand, int64_t* budget);
  // The same for one whose message was taken when there was no slot.
  bool PushKept(size_t strand, const Step& step, int64_t* budget);
  static bool Block(State* state, Wait wait) {
    state->wait = wait;
    return false;
  }
  bool Ready(size_t strand, const Step& step) const;
  int64_t Done(size_t strand, int64_t tile, uint32_t step) const;
  // Where the receiver can read what lies at `place`; null if it cannot.
  const std::byte* DirectAt(size_t strand, const Place& place, const Step& step, int64_t bytes) const;
  // False if `memory` is null.
  bool PushDirect(size_t strand, const std::byte* memory, int64_t bytes);
  // Null if it does not lie in one piece.
  const std::byte* OnePiece(const Place& place, const Step& step, int64_t tile) const;
  void Push(size_t strand, int64_t bytes);
  // True if nobody reads, or will read, where the step stores.
  bool TakeBack(const Step& step, int64_t tile);
  bool DropTaken();
  // Everything but waiting: reads message and memory, stores, and fills `slot` if it is not null. What stays in memory
  // is not written around the caches: whoever reads it does so soon.
  void Work(size_t strand, const Step& step, const std::byte* message, std::byte* slot);
  // What the step left in its destination, as a message.
  void Collect(size_t strand, const Step& step, std::byte* slot) const;
  Run RunOf(const Step& step, int64_t tile, int64_t index, int64_t offset) const;
  std::byte* At(const Place& place, int64_t index, int64_t begin) const;
  int64_t MessageBytes(const Step& step, int64_t tile) const;
  bool Streams(size_t strand) const { return site_.connections->streams(static_cast<int>(strand)); }

  const RunSite site_;
  const RankProgram& program_;
  const int64_t element_bytes_;
  const int64_t tile_elements_, tiles_;
  std::vector<State> states_;
  size_t running_ = 0;
  std::vector<DirectMessage> direct_;
};

}  // namespace horocache::program
