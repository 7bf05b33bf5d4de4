// Connections between the ranks of one host, in shared memory.
//
// Note [One writer per word]
// Every word and slot has one writer. The sender writes the slots and the count of pushed messages, in its own area.
// The receiver writes the count of popped messages, in its own area. (Exception: the receiver marks a direct message in
// the sender's slot when it begins to read it.) A count is stored with the number of its operation, so it is never
// reset: a word of an earlier operation counts as 0, and a word of a later operation counts as infinity, because its
// writer has ended the current one. Consecutive operations use different halves of the area for their slots. A rank
// uses the slots of operation k only after all ranks have ended operation k - 2, so all messages in a half have been
// read before it is reused.
//
// Threads: the driving thread. Ownership: none of the memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/memory.h"
#include "data/backend.h"
#include "program/links.h"

namespace horocache::program {

class ShmLinks final : public Links {
 public:
  static constexpr int kMostEnds = 256;
  static constexpr int64_t kMostMessages = (1 << 24) - 1;
  static constexpr uint64_t kLastFlag = std::numeric_limits<uint32_t>::max();

  // `area` has the areas of all ranks, which have equal sizes. `last_flag` is the largest flag of LL; tests lower it.
  explicit ShmLinks(data::SharedArea area, uint64_t last_flag = kLastFlag);

  int64_t MostSlotBytes(Protocol protocol, const Wirings& wirings, int slots) override;
  int usual_slots() const override { return kSlots; }
  void Begin(const LinkPlan& plan) override;
  bool Ready() override;
  int Behind() const override;
  void End() override;
  void Ring() override;

  std::byte* Claim(int thread_block) override;
  void Push(int thread_block, int64_t bytes) override;
  const std::byte* Peek(int thread_block, int64_t bytes) override;
  const std::byte* Take(int thread_block, const std::byte* peeked) override;
  void Pop(int thread_block) override;
  bool Reaches(int thread_block, const std::byte* memory, int64_t bytes) const override;
  void PushFrom(int thread_block, const std::byte* memory) override;
  uint64_t Popped(int thread_block) override;
  bool Retract(int thread_block, uint64_t message, const std::byte* memory, int64_t bytes) override;

 private:
  static constexpr int kSlots = 4;

  struct alignas(kCacheLine) Word {
    std::atomic<uint64_t> value{0};
  };
  struct Words {
    Word ended;    // number of operations that this rank has ended
    Word reaches;  // 1: this rank can read the others' regions
    Word pushed[kMostEnds], popped[kMostEnds];
  };
  // State of one end in the current operation.
  struct EndState {
    uint64_t count = 0;              // messages pushed or popped here
    uint64_t seen = 0;               // the other end's count, as last read
    int64_t decoded = 0;             // lines of the next message that have been decoded
    std::vector<std::byte> message;  // with LL and LL128: the message before encoding or after decoding
  };
  static constexpr int kCountBits = 24;
  // Precedes a slot's bytes with kDirect. 0: the message is in the slot. Else the upper 63 bits are the message's
  // offset in the sender's region plus 1, and the lowest bit is kTaken.
  using DirectLocation = std::atomic<uint64_t>;
  static constexpr uint64_t kTaken = 1;  // the receiver is reading the direct message
  // Parts of an area, after its words. LL and LL128 have a part each, so the positions of their flags never hold other
  // data.
  enum Part { kPlain, kWithLL, kWithLL128, kNumParts };

  static Part PartOf(Protocol protocol);
  size_t PartOffset(Part part) const;
  size_t PartBytes(Part part) const;  // bytes of one half
  Words& words(int rank) const { return *reinterpret_cast<Words*>(area_.data[static_cast<size_t>(rank)]); }
  uint64_t CountOf(const Word& word) const;
  void Publish(Word* word, uint64_t count) const;
  std::byte* Slot(int rank, int end, uint64_t message) const;
  // The slot's message bytes, after the DirectLocation if it has one.
  std::byte* SlotBytes(int rank, int end, uint64_t message) const;
  DirectLocation& whereabouts(int rank, int end, uint64_t message) const {
    return *reinterpret_cast<DirectLocation*>(Slot(rank, end, message));
  }
  uintptr_t RegionAt(int rank) const {
    return reinterpret_cast<uintptr_t>(area_.regions[static_cast<size_t>(rank)].data());
  }
  void PublishPushed(const Endpoint& end, EndState* state);
  uint64_t FlagOf(uint64_t message) const;
  template <typename Line>
  void Encode(EndState* state, std::byte* slot, int64_t bytes, uint64_t flag) const;
  template <typename Line>
  bool Decode(EndState* state, const std::byte* slot, int64_t bytes, uint64_t flag) const;
  void CleanFlags();
  void Touch(int rank) { touched_[static_cast<size_t>(rank)] = true; }

  const data::SharedArea area_;
  const uint64_t last_flag_;
  LinkPlan plan_;
  const Wiring* wiring_ = nullptr;
  Protocol protocol_ = Protocol::kSimple;  // the plan's; kSimple instead of kLL while flags are cleared
  uint64_t operation_ = 0;                 // number of the current operation, from 1
  uint64_t first_flag_ = 1, next_flag_ = 1;
  int cleaning_ = 0;  // operations for which flags are still to be cleared and LL is not used
  bool ready_ = false;
  size_t encoded_ = 0;  // bytes of a slot
  std::vector<EndState> out_, in_;
  std::vector<char> touched_;
};

}  // namespace horocache::program
