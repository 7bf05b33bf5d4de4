// The paper's agreement: every rank publishes its bitvector and AND-reduces those of all ranks. A round goes through
// the coordinator only if some rank raises a flag, for example because it has an uncached request.
//
// See Note [When a round happens] in agreement.h. A rank is in one of four states:
//
//   kOpen ----publish----> kPublished ----all have published----> kOpen (nothing to gather)
//                                                           \---> kGathering (rank 0) or kAwaiting ----> kOpen
//
// Note [No wake-up is lost]
// A rank sleeps without a limit only when nothing is pending on it. With a request pending, it checks again after a
// pause that doubles up to 100 ms, and again rings the ranks that it waits for. The reason is that a channel may show a
// rank's words late, so that two ranks that read each other's hints at the same time both miss the other's.
//
// Threads: the thread that holds the rank's progress lock. The owner of the controller owns it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "control/agreement.h"

namespace horocache::control {

class BitvectorAgreement final : public Agreement {
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

  // Flushes what is due, updates the hint and reads the AND of all hints; true if this rank showed something new.
  bool Observe(Controller& controller, ControlChannel& channel, int64_t now_ns);
  bool RaiseIfStuck(Controller& controller, ControlChannel& channel);
  // True if a flush that need not happen at once is due: because of the other ranks' hints, or after a delay.
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
  // The snapshots of all ranks for this round if an agreed operation may run inline; otherwise empty.
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
  bool PauseIsOver(int64_t now_ns);  // true if the pause is over; then starts the next one, twice as long
  template <typename F>
  Status CheckOverdue(Controller& controller, F&& missing, int64_t now_ns);
  int64_t ComputeWake(const Controller& controller) const;

  State state_ = State::kOpen;
  bool started_ = false;
  bool all_snapshots_readable_ = false;  // true if every rank reads all snapshots, so that allreduces may run inline
  std::vector<uint64_t> words_;          // this rank's snapshot, then the AND of all snapshots
  std::vector<uint64_t> payload_;        // the payload of this rank's snapshot
  std::vector<Snapshot> snapshots_;
  std::vector<uint64_t> hint_;      // this rank's hint, as last set
  std::vector<uint64_t> scratch_;   // the next hint
  std::vector<uint64_t> hint_and_;  // the AND of all ranks' hints, as last read
  bool flushes_next_ = false;       // true if a flush was found due and happens in the next step
  bool just_published_ = false;
  uint64_t published_changes_ = ~uint64_t{0};  // Controller::changes() at the last publication

  RoundOutcome outcome_;
  std::vector<wire::RequestList> lists_;  // rank 0: the request lists of the gather under way
  std::string frame_;

  int64_t flushed_ns_ = 0;  // time of the last flush
  int64_t next_tick_ns_ = 0;
  int64_t pause_ns_ = 0;
  int64_t pause_until_ns_ = 0;
  int64_t demanded_since_ns_ = -1;  // the other ranks have to answer since then; -1: they need not
  bool overdue_reported_ = false;
  int64_t wake_ns_ = 0;
};

}  // namespace horocache::control
