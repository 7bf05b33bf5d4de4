// Connections between the ranks of one host.
//
// Note [Who writes what]
// Every word and slot is written by one rank: what is pushed by the sender, in its area; what was popped by the
// receiver, in its own. (But for a mark on a direct message that its receiver begins to read.) A word is the number of
// the operation and a count, so nothing is ever reset: a word of an earlier operation counts as 0, and one of a later
// operation as everything, for its writer has ended this one. Slots of two operations that follow each other lie in
// different halves of the area. Nobody begins an operation before all ranks have ended the one before the last, so what
// is in a half has been read when it is written again.
//
// Role: lanes. Ownership: none of the memory.
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

  // All ranks' areas of the same bytes. `last_flag` of LL is for tests.
  explicit ShmLinks(data::SharedArea area, uint64_t last_flag = kLastFlag);

  int64_t MostSlotBytes(Protocol protocol, const Wirings& wirings, int slots) override;
  int usual_slots() const override { return kSlots; }
  void Begin(const LinkPlan& plan) override;
  bool Ready() override;
  int Behind() const override;
  void End() override;
  void Ring() override;

  std::byte* Claim(int strand) override;
  void Push(int strand, int64_t bytes) override;
  const std::byte* Peek(int strand, int64_t bytes) override;
  const std::byte* Take(int strand, const std::byte* peeked) override;
  void Pop(int strand) override;
  bool Reaches(int strand, const std::byte* memory, int64_t bytes) const override;
  void PushFrom(int strand, const std::byte* memory) override;
  uint64_t Popped(int strand) override;
  bool Retract(int strand, uint64_t message, const std::byte* memory, int64_t bytes) override;

 private:
  static constexpr int kSlots = 4;

  struct alignas(kCacheLine) Word {
    std::atomic<uint64_t> value{0};
  };
  struct Words {
    Word ended;    // operations
    Word reaches;  // 1: this rank can read the others' regions
    Word pushed[kMostEnds], popped[kMostEnds];
  };
  // Of one end, in this operation.
  struct EndState {
    uint64_t count = 0;              // messages that were pushed or popped
    uint64_t seen = 0;               // of the other end's count, as last seen
    int64_t decoded = 0;             // lines of the next message
    std::vector<std::byte> message;  // of a protocol with lines
  };
  static constexpr int kCountBits = 24;
  // In front of a slot's bytes, with kDirect: where in the sender's region the message is, plus 1, and who has it; 0:
  // it is in the slot.
  using Whereabouts = std::atomic<uint64_t>;
  static constexpr uint64_t kTaken = 1;  // the receiver reads it
  // Parts of an area behind its words. Memory with flags never holds anything else at their places.
  enum Part { kPlain, kWithLL, kWithLL128, kNumParts };

  static Part PartOf(Protocol protocol);
  size_t PartOffset(Part part) const;
  size_t PartBytes(Part part) const;  // of a half
  Words& words(int rank) const { return *reinterpret_cast<Words*>(area_.data[static_cast<size_t>(rank)]); }
  uint64_t CountOf(const Word& word) const;
  void Publish(Word* word, uint64_t count) const;
  std::byte* Slot(int rank, int end, uint64_t message) const;
  // The same, without what is in front of its bytes.
  std::byte* SlotBytes(int rank, int end, uint64_t message) const;
  Whereabouts& whereabouts(int rank, int end, uint64_t message) const {
    return *reinterpret_cast<Whereabouts*>(Slot(rank, end, message));
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
  Protocol protocol_ = Protocol::kSimple;  // the plan's, but when flags are cleaned
  uint64_t operation_ = 0;                 // counted from 1
  uint64_t first_flag_ = 1, next_flag_ = 1;
  int cleaning_ = 0;  // operations for which LL is not used
  bool ready_ = false;
  size_t encoded_ = 0;  // bytes of a slot
  std::vector<EndState> out_, in_;
  std::vector<char> touched_;
};

}  // namespace horocache::program
