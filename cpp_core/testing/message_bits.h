// The paper's design as it runs over MPI: the AND is an allreduce of messages by recursive doubling, and requests that
// the caches do not know are gathered at rank 0, whose responses are broadcast. For measuring: it runs a round in every
// step of every rank, as a tick does, so all ranks have to be stepped for any to get on.
//
// Role: whoever owns the controller.
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
  bool sent_ = false;  // in this phase
  control::RoundOutcome outcome_;
  std::map<std::pair<uint64_t, int>, std::vector<uint64_t>> received_;  // words by round and phase
  std::vector<wire::RequestList> lists_;
  std::vector<wire::ResponseList> responses_;
};

}  // namespace horocache::testing
