// An agreement by frames along a tree: contributions merge on their way up to rank 0, and results come down. Star,
// radix-r tree and hosts with leaders are the same protocol over different trees; see topology.h.
//
// Note [When a relayed round runs]
// A round runs when every rank has contributed to it. A rank contributes when it has news: it has flushed submissions
// (because it waits, because cycle_time is over, or because it needs the coordinator), it has begun to wait with a
// request pending, or a tick has come. A rank with nothing pending is not asked, because nothing can be agreed on
// without it. Two kinds of silent ranks are asked, by a poll that travels down the tree:
//   - all ranks, when some rank's flags need the coordinator (an alert travels up to the root);
//   - the ranks that *owe*: they contributed cached requests to the last round that were not agreed on then. They have
//     no news, but their pending requests may be complete now. A node knows which of its subtrees owe from the
//     bitvectors that it got from them, and asks them as soon as any rank in its own subtree contributes.
// So every request that is pending on all ranks is agreed on: the last rank to submit it has news, and all other ranks
// have news or owe. After an empty round no rank has news, so it does not cause another, and an idle job sends nothing.
//
// Uncached requests travel with the bitvectors (`with_requests`), as in Horovod, or in a second pass after the AND has
// asked for them. A second pass also follows if rank 0 needs to know more than requests (stalls, different caches).
//
// Threads: the thread that holds the rank's progress lock. The owner of the controller owns it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "control/agreement.h"
#include "control/strategies/relay_frame.h"
#include "control/strategies/request_merger.h"
#include "control/strategies/topology.h"

namespace horocache::control {

struct RelayOptions {
  enum class Shape { kStar, kTree, kHosts };
  Shape shape = Shape::kStar;
  int radix = 4;
  std::vector<int> host_of;   // of each rank; empty: all ranks are on one host
  bool with_requests = true;  // uncached requests travel with the bitvectors
  bool merge = true;          // inner nodes merge equal requests
  // Ranks on their parent's host publish their bitvectors instead of sending them, where the channel allows it.
  bool share_bitvectors = false;
};

class RelayAgreement final : public Agreement {
 public:
  explicit RelayAgreement(RelayOptions options) : options_(std::move(options)), requests_(options_.merge) {}

  StatusOr<bool> Step(Controller& controller, ControlChannel& channel, int64_t now_ns) override;
  int64_t NextWakeNs() const override { return wake_ns_; }

 private:
  struct Child {
    int rank = 0;
    bool in = false;              // has contributed to this round
    bool lists_in = false;        // has sent its lists
    bool asked = false;           // has been asked to contribute because it owes
    bool asked_urgently = false;  // has been asked to contribute because the round is urgent
    bool owes = false;
    std::vector<uint64_t> words;
  };

  void Start(const ControlChannel& channel);
  // Receiving. The received frame is in bytes_.
  StatusOr<bool> ReceiveAll(Controller& controller, ControlChannel& channel, int64_t now_ns);
  Status Handle(Controller& controller, ControlChannel& channel, int from, int64_t now_ns);
  Status HandleFromChild(Child* child, RelayFrame* frame);
  Status HandleFromParent(Controller& controller, ControlChannel& channel, const RelayFrame& frame, int64_t now_ns);
  bool TakePublished(const Controller& controller, ControlChannel& channel);

  // The parts of a round.
  StatusOr<bool> StepRound(Controller& controller, ControlChannel& channel, int64_t now_ns);

  void FlushIfDue(Controller& controller, int64_t now_ns);
  bool HasNews(const Controller& controller, int64_t now_ns) const;
  bool MustContribute(const Controller& controller, int64_t now_ns) const;
  void Contribute(Controller& controller, ControlChannel& channel, int64_t now_ns);
  bool IsUrgent(const Controller& controller) const;
  void AskTheSilent(Controller& controller, ControlChannel& channel);
  void AndSubtree();
  void PassUp(Controller& controller, ControlChannel& channel);
  Status Decide(Controller& controller, ControlChannel& channel, int64_t now_ns);
  void BeginLists(Controller& controller, int64_t now_ns);
  void PassListsUp(Controller& controller, ControlChannel& channel);
  Status Answer(Controller& controller, ControlChannel& channel, int64_t now_ns);
  Status EndRound(Controller& controller, const wire::ResponseList* responses);

  bool Shares(const ControlChannel& channel, int rank) const;
  std::vector<int32_t> Missing(const ControlChannel& channel, int64_t now_ns) const;
  Status CheckOverdue(Controller& controller, const ControlChannel& channel, int64_t now_ns);
  bool IsRoot() const { return parent_ < 0; }
  bool AllIn() const;
  bool NeedsLists(const RoundOutcome& outcome) const;
  RelayFrame NewFrame(const Controller& controller, RelayFrame::Kind kind) const;
  void Send(Controller& controller, ControlChannel& channel, int to, const std::string& bytes);
  void SendFrame(Controller& controller, ControlChannel& channel, int to, const RelayFrame& frame);
  void SendDown(Controller& controller, ControlChannel& channel, const std::string& bytes);
  Child* ChildOf(int rank);
  int64_t ComputeWake(const Controller& controller) const;

  const RelayOptions options_;
  bool started_ = false;
  int parent_ = -1;
  std::vector<Child> children_;

  // State of this round.
  std::vector<uint64_t> own_bitvector_, and_;
  uint64_t frozen_flags_ = 0;
  bool in_ = false;       // this rank has contributed
  bool polled_ = false;   // this rank was asked because its subtree owes
  bool urgent_ = false;   // some rank needs the coordinator: all ranks have to contribute
  bool alerted_ = false;  // the parent knows that the round is urgent
  int64_t urgent_since_ns_ = -1;
  bool overdue_reported_ = false;
  bool passed_up_ = false;  // the subtree's AND is sent to the parent or, at the root, decided
  bool and_applied_ = false;
  bool listing_ = false;  // the second pass is under way
  bool lists_passed_up_ = false;
  RoundOutcome outcome_;
  SubtreeRequests requests_;

  // State between rounds.
  bool news_ = false;
  bool owes_ = false;
  uint64_t seen_changes_ = 0;  // Controller::changes() at the last contribution
  int64_t next_tick_ns_ = 0;
  int64_t wake_ns_ = 0;
  std::string bytes_;
};

}  // namespace horocache::control
