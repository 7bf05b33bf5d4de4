// An agreement by frames along a tree: contributions merge on their way up to rank 0, results come down. Star, radix-r
// tree and hosts with leaders are the same protocol over other trees; see topology.h.
//
// Note [When a relayed round runs]
// A round runs when every rank has contributed to it. A rank contributes when it has news: it flushed submissions
// (because it waits, because cycle_time is over, or because it needs the coordinator), it began to wait with something
// pending, or a tick has come. Whoever has nothing pending is not asked, since nothing can be agreed on without it. Two
// kinds of silent ranks are asked, by a poll that travels down:
//   - all, when some rank's flags need the coordinator (an alert travels up to the root);
//   - those that *owe*: they contributed cached requests to the last round that were not agreed on then. They have no
//     news, but what they have pending may be complete now. A node knows which of its subtrees owe from the words that
//     it got from them, and asks them as soon as anybody in its own subtree contributes.
// So what all members have pending is agreed on: the last of them to submit it has news, all others have news or owe.
// An empty round leaves nobody with news, so it does not call for another, and an idle job sends nothing.
//
// Requests that the caches do not know travel with the words (`with_requests`), as in Horovod, or in a second pass
// after the AND has asked for them. A second pass is also made where rank 0 needs to know more than requests (stalls,
// caches that differ).
//
// Role: coordinator. Owned by whoever owns the controller.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "control/agreement.h"
#include "control/agreements/relay_frame.h"
#include "control/agreements/request_merger.h"
#include "control/agreements/topology.h"

namespace horocache::control {

struct RelayOptions {
  enum class Shape { kStar, kTree, kHosts };
  Shape shape = Shape::kStar;
  int radix = 4;
  std::vector<int> host_of;   // of each rank; empty: all on one host
  bool with_requests = true;  // requests travel with the words
  bool merge = true;          // inner nodes send equal requests once
  // Ranks on their parent's host publish their words instead of sending them, where the channel allows it.
  bool share_words = false;
};

class RelayAgreement final : public Agreement {
 public:
  explicit RelayAgreement(RelayOptions options) : options_(std::move(options)), basket_(options_.merge) {}

  StatusOr<bool> Step(Controller& controller, ControlChannel& channel, int64_t now_ns) override;
  int64_t NextWakeNs() const override { return wake_ns_; }

 private:
  struct Child {
    int rank = 0;
    bool in = false;        // has contributed to this round
    bool lists_in = false;  // has sent its lists
    bool asked = false;     // to contribute, with urgency or without
    bool pressed = false;   // with urgency
    bool owes = false;
    std::vector<uint64_t> words;
  };

  void Start(const ControlChannel& channel);
  // Receiving. A frame is in bytes_.
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

  // Of this round.
  std::vector<uint64_t> own_words_, and_words_;
  uint64_t frozen_flags_ = 0;
  bool in_ = false;       // this rank has contributed
  bool polled_ = false;   // it was asked because it owes
  bool urgent_ = false;   // some rank needs the round: all have to answer
  bool alerted_ = false;  // the parent knows, or told this rank
  int64_t urgent_since_ns_ = -1;
  bool overdue_reported_ = false;
  bool passed_up_ = false;  // the subtree's words are with the parent, or decided upon
  bool intersected_ = false;
  bool listing_ = false;  // the second pass is under way
  bool lists_passed_up_ = false;
  RoundOutcome outcome_;
  RequestBasket basket_;

  // Between rounds.
  bool news_ = false;
  bool owes_ = false;
  uint64_t seen_changes_ = 0;  // Controller::changes() at the last contribution
  int64_t next_tick_ns_ = 0;
  int64_t wake_ns_ = 0;
  std::string bytes_;
};

}  // namespace horocache::control
