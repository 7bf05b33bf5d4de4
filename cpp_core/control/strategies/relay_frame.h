// The frames by which ranks relay a round up and down a tree. The decoder treats its input as hostile, like wire/codec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "control/strategies/request_merger.h"
#include "wire/message.h"

namespace horocache::control {

struct RelayFrame {
  enum class Kind : uint8_t {
    kUp,         // to the parent: the AND of the subtree's bitvectors, and requests if they travel with them
    kAlert,      // to the parent: some rank needs the coordinator in this round
    kPoll,       // to a child: all ranks of the subtree must contribute to this round now
    kAskOwing,   // to a child: contribute, because the subtree owes
    kBitvector,  // to a child: the AND of all bitvectors; send requests now
    kLists,      // to the parent: the subtree's requests, in answer to kBitvector
    kResult,     // to a child: the result, which ends the round
  };
  static constexpr int kNumKinds = 7;

  Kind kind = Kind::kUp;
  uint32_t process_set = 0;
  uint32_t epoch = 0;
  uint64_t round = 0;
  std::vector<uint64_t> words;
  std::vector<MergedRequest> requests;   // of all ranks of the subtree
  std::vector<wire::RequestList> lists;  // of the ranks that send more than requests; without their requests
  bool has_responses = false;
  wire::ResponseList responses;
  bool operator==(const RelayFrame&) const = default;
};

void EncodeFrame(const RelayFrame& frame, std::string* out);  // appends
// kCorrupt, with the offset, if the bytes are not a frame of a process set of `size` ranks.
StatusOr<RelayFrame> DecodeFrame(std::span<const std::byte> bytes, int size);

}  // namespace horocache::control
