// The paper's agreement: every rank publishes a bitvector, every rank ANDs all of them, and only a round in which
// somebody has something new goes through the coordinator.
//
// See Note [When a round happens] in agreement.h. A rank is in one of four states:
//
//   kOpen ----publish----> kPublished ----all have published----> kOpen (nothing to gather)
//                                                           \---> kGathering (rank 0) or kAwaiting ----> kOpen
//
// Note [No wake-up is lost]
// A rank sleeps without a limit only when nothing is pending on it. With something pending it looks again after a pause
// that doubles up to 100 ms, and rings again whom it waits for: a channel may show a rank's words late, so that of two
// ranks that look at each other at the same time neither sees the other.
//
// Role: coordinator. Owned by whoever owns the controller.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "control/agreement.h"

namespace horocache::control {

class BitsAgreement final : public Agreement {
 public:
  StatusOr<bool> Step(Controller& controller, ControlChannel& channel, int64_t now_ns) override;
  int64_t NextWakeNs() const override { return wake_ns_; }

 private:
  enum class State { kOpen, kPublished, kGathering, kAwaiting };

  StatusOr<bool> StepState(Controller& controller, ControlChannel& channel, int64_t now_ns);
  StatusOr<bool> StepOpen(Controller& controller, ControlChannel& channel, int64_t now_ns);
  StatusOr<bool> StepPublished(Controller& controller, ControlChannel& channel, int64_t now_ns);
  Status AwaitOthers(Controller& controller, ControlChannel& channel, bool fresh, int64_t now_ns);
  StatusOr<bool> StepGathering(Controller& controller, ControlChannel& channel, int64_t now_ns);
  StatusOr<bool> StepAwaiting(Controller& controller, ControlChannel& channel, int64_t now_ns);

  // Flushes what is due, brings the hint up to date and reads the others': true if something new was shown.
  bool Observe(Controller& controller, ControlChannel& channel, int64_t now_ns);
  bool RaiseIfStuck(Controller& controller, ControlChannel& channel);
  // Of what need not be shown at once: because of what the others say, or after a while.
  bool FlushIsDue(const Controller& controller, int64_t now_ns) const;
  void Flush(Controller& controller, int64_t now_ns);
  bool OthersWait() const;
  bool OthersGather() const;
  bool MayFlush() const;
  bool Lingers(const Controller& controller) const;
  int64_t FlushNs(const Controller& controller) const;
  bool RefreshHint(const Controller& controller, ControlChannel& channel, bool lingering);
  bool MustPropose(const Controller& controller) const;
  void Publish(Controller& controller, ControlChannel& channel, int64_t now_ns);
  // What every rank published for this round, if something that is agreed on may ride on it.
  StatusOr<std::span<const Snapshot>> ReadSnapshots(const Controller& controller, ControlChannel& channel);
  void RingUnpublished(const Controller& controller, ControlChannel& channel);
  void RingOthers(ControlChannel& channel);
  Status EndRound(Controller& controller, ControlChannel& channel, const wire::ResponseList* responses);
  StatusOr<bool> StartGather(Controller& controller, ControlChannel& channel, const RoundOutcome& outcome,
                             int64_t now_ns);
  StatusOr<bool> Answer(Controller& controller, ControlChannel& channel, int64_t now_ns);
  void SendToAll(Controller& controller, ControlChannel& channel, const wire::ResponseList& responses);

  // Time.
  void ResetPause(int64_t now_ns);
  bool PauseIsOver(int64_t now_ns);  // and begins the next, twice as long
  template <typename F>
  Status CheckOverdue(Controller& controller, F&& missing, int64_t now_ns);
  int64_t ComputeWake(const Controller& controller) const;

  State state_ = State::kOpen;
  bool started_ = false;
  bool carries_ = false;           // every rank reads all snapshots, so that operations may ride on rounds
  std::vector<uint64_t> words_;    // the snapshot, then the AND of all
  std::vector<uint64_t> payload_;  // of the snapshot
  std::vector<Snapshot> snapshots_;
  std::vector<uint64_t> hint_;      // as last set
  std::vector<uint64_t> scratch_;   // the hint to be
  std::vector<uint64_t> hint_and_;  // of all ranks, as last read
  bool flushes_next_ = false;       // a flush was due when this was last looked at
  bool just_published_ = false;
  uint64_t published_changes_ = ~uint64_t{0};  // Controller::changes() at the last publication

  RoundOutcome outcome_;
  std::vector<wire::RequestList> lists_;  // rank 0: of the gather under way
  std::string frame_;

  int64_t flushed_ns_ = 0;  // when what was submitted was shown to the others last
  int64_t next_tick_ns_ = 0;
  int64_t pause_ns_ = 0;
  int64_t pause_until_ns_ = 0;
  int64_t demanded_since_ns_ = -1;  // others have to answer since then; -1: they need not
  bool overdue_reported_ = false;
  int64_t wake_ns_ = 0;
};

}  // namespace horocache::control
