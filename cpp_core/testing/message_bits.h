// The paper's design as it runs over MPI. The bitvectors are AND-reduced by messages, with recursive doubling. Uncached
// requests are gathered at rank 0, which broadcasts its responses.
//
// For benchmarks only. A rank begins a round when it has submissions or a raised flag, or when words of the round
// arrive. A round ends only if all ranks are stepped.
//
// Threads: the controller's owner.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "control/agreement.h"

namespace horocache::testing {

inline constexpr char kMessageBits[] = "bits by messages";

class MessageBitsAgreement final : public control::Agreement {
 public:
  StatusOr<bool> Step(control::Controller& controller, control::ControlChannel& channel, int64_t now_ns) override;
  int64_t NextWakeNs() const override;

 private:
  enum class State { kIdle, kReducing, kGathering, kAwaiting };

  Status Receive(control::ControlChannel& channel);
  bool Reduce(control::ControlChannel& channel);
  void SendWords(control::ControlChannel& channel, int to, int phase);
  bool TakeWords(int phase);
  StatusOr<bool> Gather(control::Controller& controller, control::ControlChannel& channel, int64_t now_ns);

  State state_ = State::kIdle;
  uint64_t round_ = 0;
  std::vector<uint64_t> words_;
  int phase_ = 0;      // of the reduction
  bool sent_ = false;  // true if the words of this phase were sent
  control::RoundOutcome outcome_;
  std::map<std::pair<uint64_t, int>, std::vector<uint64_t>> received_;  // words by round and phase
  std::vector<wire::RequestList> lists_;
  std::vector<wire::ResponseList> responses_;
};

}  // namespace horocache::testing
