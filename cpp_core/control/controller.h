// One rank's control plane for one process set: which requests are pending here, which of them all ranks have, and
// which operations run next.
//
// Note [Cache positions are identical on all ranks]
// Every insertion, touch, erasure and growth of the response cache follows from a round's AND-reduced bitvector and
// response list, and every rank applies them in the same order before it freezes the next round's snapshot. So a cache
// bit means the same entry on every rank without further agreement, and the two hash words (h and ~h) of each snapshot
// verify this in every round.
//
// Note [Stack traces in stall reports]
// A stall report names the ranks that lack an operation; only these ranks can say why. So the response list that
// carries the report asks some of them for their stack traces. An asked rank sends its answer as the note of a later
// request list, and the response list of that round carries it to all ranks, which log it. A stopped rank sends
// nothing, and no rank waits for its answer.
//
// Note [Inline allreduces]
// An inline allreduce is a cached allreduce of a few bytes that needs no exchange of its own. Behind its bitvector,
// every rank's snapshot carries a payload: the data of the rank's pending requests that may run inline. When the AND
// agrees on such a bit, every rank has all ranks' data at hand and folds it by itself. Which requests run inline
// follows from data that is equal on all ranks:
// * Whether an entry may run inline is decided once, when it is inserted, from its signature, its choice and the
//   settings.
// * The position of a bit's data in a rank's payload follows from that rank's own bits: the bits that may run inline,
//   ascending, each in whole words, up to the first whose data does not fit into kMaxPayloadWords or is missing on the
//   rank.
// * An agreed bit runs inline if its data, and that of every agreed bit before it that may run inline, is in every
//   rank's payload. The other agreed bits are fused and run in a lane.
// Example: entries 3, 5 and 9 may run inline and have 1, 2 and 1 words. Rank 0 has all three pending and publishes four
// words of payload; rank 1 has 3 and 9 pending and publishes two. The AND leaves 3 and 9. Every rank computes from the
// two bitvectors that the data of 9 is word 3 of rank 0's payload and word 1 of rank 1's.
// A joined rank has bits but no data, so nothing runs inline while any rank has joined. Agreements that pass on an AND
// instead of letting all ranks read all snapshots give no payloads, so nothing runs inline there either. If a payload
// has the wrong length, the same requests go to a lane on all ranks, and no rank reads beyond the payload's end.
//
// Threads: the thread that holds the rank's progress lock. Pure: no clock, lock or I/O; `now_ns` comes in, decisions go
// out. An Agreement drives the controller over a ControlChannel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/duration.h"
#include "base/status.h"
#include "control/bitvector.h"
#include "control/coordinator.h"
#include "control/fusion_planner.h"
#include "control/merged_request.h"
#include "control/plan.h"
#include "control/rank_set.h"
#include "control/response_cache.h"
#include "control/selector.h"
#include "control/settings.h"
#include "control/stall_inspector.h"
#include "control/tensor_queue.h"
#include "wire/message.h"

namespace horocache::control {

struct ControllerConfig {
  int rank = 0;  // within the process set
  int size = 1;
  uint32_t process_set = 0;
  RankNames names;
  uint32_t epoch = 0;
  int64_t cache_capacity = 1024;
  bool cache_capacity_fixed = false;  // true if the user chose the capacity: the cache never grows
  int64_t fusion_threshold_bytes = 128 << 20;
  bool disable_group_fusion = false;
  int64_t inline_max_bytes = kMaxInlineBytes;  // limit for inline allreduces; 0: none run inline
  bool tick = false;                           // true if cycle_mode is "tick"
  int64_t cycle_time_ns = 1000000;
  bool stall_check = true;
  int64_t stall_warn_ns = 10'000'000'000;
  int64_t stall_fail_ns = 600'000'000'000;  // 0: never
  bool stall_fail_computing = false;        // true if the limit also counts while a late rank computes
  Selector selector;

  // The period of tick mode; at least 10 us, so that with a cycle_time of 0 one call does not tick without end.
  int64_t TickNs() const { return std::max<int64_t>(cycle_time_ns, 10'000); }
};

struct ControllerCounters {
  uint64_t rounds = 0;
  uint64_t slow_rounds = 0;  // rounds that gathered requests
  uint64_t flushes = 0;      // snapshots and hints that carried new requests
  uint64_t hits = 0, misses = 0, changed = 0, evictions = 0, growths = 0;
  uint64_t control_bytes = 0;  // bytes of snapshots and frames that this rank published or sent
  uint64_t frames = 0;
  uint64_t dropped_frames = 0;  // frames of another process set or epoch

  void Add(const ControllerCounters& other);
};

// The decoded AND of a round's bitvectors (DecodeBitVector in the paper's Algorithm 2).
struct RoundOutcome {
  uint64_t raised = 0;         // StatusFlag bits (bitvector.h) that some rank raised
  bool all_wait = false;       // true if, on every rank, every thread that ever submitted waits
  bool hashes_differ = false;  // true if the ranks' caches or selectors differ: nothing of this round runs
  int agreed = 0;              // number of cached requests that are pending on all ranks: planned now
  bool gather = false;         // true if rank 0 must gather requests before the round can end
};

class Controller {
 public:
  explicit Controller(ControllerConfig config);
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  // ---- inputs from the runtime ----
  // Adds the request to the tensor queue. kDuplicateName if its name, or a member's, is pending; kShutDown (or the
  // loss) after the end. Steady state (cached, unchanged signature): one lookup and no allocation. `data`: this rank's
  // input, its tensors one after the other, if it is short enough to run inline; it is copied. `known`: see
  // ResponseCache::Find.
  Status Submit(OpId op, const wire::Request& request, int64_t now_ns, std::span<const std::byte> data = {},
                KnownEntry* known = nullptr);
  // `waiting`: a thread of this rank waits for an operation. `all_waiting`: every thread that ever submitted waits, and
  // no planned operation still runs, so nothing more will come. To be called before each Step, because every plan and
  // every failure resets `all_waiting`.
  void SetWaiting(bool waiting, bool all_waiting);
  // `computes`: threads of this rank, other than the core's, have run lately, so ranks that wait for this one may still
  // get what they wait for.
  void SetComputes(bool computes) { computes_ = computes; }
  // The name of the last operation that this rank completed, for stall reports.
  void SetLastDone(const std::string& name);
  // Sends the note to the logs of all ranks, with the next round.
  void SendNote(const std::string& note);
  // Rank 0 only: all ranks change these settings in a round of their own, in the order of the calls; see Note [Settings
  // change in one round] in settings.h. kInvalidArgument on another rank, or if the text or its table does not parse;
  // the reason if the set has ended.
  Status Configure(const std::string& settings);
  // This rank leaves: the next round announces it, and that round closes the set on all ranks.
  void Leave() { leaving_ = true; }
  // This rank cannot go on: the pending operations of all ranks fail with kAborted and this text.
  void Abort(const std::string& why);
  // Ends the set, because a rank is lost or the job cannot continue: everything pending fails with `why` at once, and
  // so does every later Submit.
  void EndWith(const Status& why);

  // ---- outputs to the runtime, to be taken after every Agreement::Step ----
  bool NextPlan(Plan* plan);  // reuses the vectors in *plan
  bool NextFailure(Failure* failure);
  bool NextReport(std::string* text);     // a warning for the log: stall report, cache growth
  bool NextSettings(Settings* settings);  // settings that this rank has changed
  // True, once, if other ranks ask for this rank's stack traces.
  bool TakeStackRequest() { return std::exchange(asked_, false); }
  // True while requests are accepted: the set has not ended, and this rank neither leaves nor has joined.
  bool open() const { return !closed_ && !leaving_ && join_state_ == JoinState::kNone; }
  bool closed() const { return closed_; }     // true if the set has ended; plans handed out before still run
  const Status& end() const { return end_; }  // why the set has ended; ok while it is open
  // True if a request was submitted that is neither planned nor failed.
  bool HasPending() const { return !queue_.empty() || join_op_ != kNoOp; }
  const ControllerCounters& counters() const { return counters_; }
  uint64_t round() const { return round_; }
  uint64_t cache_hash() const { return cache_.hash(); }
  int64_t cache_size() const { return cache_.size(); }

  // ---- for Agreements, see agreement.h ----
  //
  // Note [The steps of a round]
  // Freeze writes this rank's bitvector of round(). Every rank gives the AND of all ranks' bitvectors to ApplyAnd,
  // which plans the agreed hits at once. If the outcome says `gather`, every rank sends the list that FillRequests
  // writes to rank 0, where Coordinate turns all lists into one ResponseList, and every rank gives that to Finish;
  // otherwise every rank calls Finish(nullptr). Finish ends the round. Where every rank reads all snapshots,
  // WritePayload follows Freeze, and ApplyAnd gets the snapshots if MayRunInline returns true.
  //
  // These are Algorithms 1 and 2 of Romero et al., "Accelerating Collective Communication in Data Parallel Training
  // across Deep Learning Frameworks" (NSDI 2022), split at each point where a rank waits for others:
  //
  //   Algorithm 1
  //     RunCycleOnce               a round, which an Agreement drives (agreement.h)
  //     PopMessagesFromQueue       Submit, Flush
  //     ResponseCache.cached       ResponseCache::Find, in Submit
  //     PushMessageToQueue         a bit that is not set on all ranks stays in the tensor queue
  //     GetResponses               ApplyAnd
  //     MasterWorkerCoordination   FillRequests on every rank, Coordinate on rank 0
  //     FuseResponses              FusionPlanner
  //     ResponseCache.put          Finish
  //     PerformOperation           NextPlan, then the lanes
  //   Algorithm 2
  //     SetBitVector               WriteBitvector
  //     Intersect                  the channel's AND, or RelayAgreement's (AndInto in bitvector.h)
  //     DecodeBitVector            ApplyAnd
  const ControllerConfig& config() const { return config_; }
  bool waiting() const { return waiting_; }
  // True if some submissions are not flushed yet; UnflushedSinceNs is the time of the first of them, or kNever.
  bool HasUnflushed() const { return unflushed_since_ns_ != kNever; }
  int64_t UnflushedSinceNs() const { return unflushed_since_ns_; }
  // True if the submissions that are not flushed yet fill a fused operation, so that waiting for more is of no use.
  bool HasFullFlush() const { return fuses() && unflushed_bytes_ >= config_.fusion_threshold_bytes; }
  // Lets HintBitvector show all submissions made so far.
  void Flush();
  // The StatusFlag bits that this rank raises. kUncached stands for flushed requests only.
  uint64_t Raised() const;
  // True if cached requests are pending here, or if this rank has joined.
  bool HasHitsPending() const { return queue_.hits_pending() > 0 || joined_here(); }
  // Counts the events that could make a round worth proposing: submissions, waits that begin, rounds that moved
  // something.
  uint64_t changes() const { return changes_; }
  void HintBitvector(bool lingering, std::vector<uint64_t>* words) const;
  // Flushes, then writes this rank's snapshot of round().
  void Freeze(std::vector<uint64_t>* words);
  void WritePayload(std::vector<uint64_t>* payload) const;
  bool MayRunInline(std::span<const uint64_t> words) const;
  RoundOutcome ApplyAnd(std::span<const uint64_t> words, std::span<const Snapshot> snapshots = {});
  void FillRequests(const RoundOutcome& outcome, int64_t now_ns, wire::RequestList* list);
  // Rank 0 only. `lists` has one entry per rank, in any order. `merged` has the requests that several ranks made alike
  // and that are in none of the lists; kJoin requests are never merged.
  Status Coordinate(std::span<const wire::RequestList> lists, const RoundOutcome& outcome, int64_t now_ns,
                    wire::ResponseList* responses, std::span<const MergedRequest> merged = {});
  Status Finish(const wire::ResponseList* responses);
  // True if the frame belongs to this process set and epoch; otherwise it is counted as dropped. Not ok if it belongs
  // to a round that cannot be under way.
  StatusOr<bool> Accept(const wire::RequestList& list, int from);
  StatusOr<bool> Accept(const wire::ResponseList& list);
  void CountSent(int frames, size_t bytes);
  // Stalls. Inspect, to be called at NextInspectNs, raises kStalled if a request is pending for too long, or if all
  // threads wait and nothing changes. RaiseStalled raises it at once, but only if something changed here since the last
  // time.
  int64_t NextInspectNs() const;
  void Inspect(int64_t now_ns);
  void RaiseStalled();
  // The time since which a request here has been pending for the whole limit without rank 0 knowing it; kNever if there
  // is none.
  int64_t OverLimitSinceNs() const { return over_limit_since_ns_; }
  void AddReport(std::string text) { reports_.push_back(std::move(text)); }

 private:
  // A join waits until no earlier request of this rank is pending, is then announced to rank 0, and holds until all
  // ranks have joined.
  enum class JoinState { kNone, kSubmitted, kAnnounced, kJoined };

  std::string own_name() const { return config_.names.Text(config_.rank); }
  std::string left() const;

  // ---- controller.cc
  Status SubmitJoin(OpId op, const wire::Signature& signature, int64_t now_ns);
  Status CheckOpen(const wire::Signature& signature) const;
  void NoteSubmitted(int64_t now_ns, int64_t bytes);
  // Ends the set: every pending operation fails with the status that `why` returns for its signature.
  void End(const Status& status, const std::function<Status(const wire::Signature&)>& why);
  void Moved();  // plans or failures were made, so all_waiting no longer holds

  // ---- round.cc
  void WriteBitvector(uint64_t raised, std::span<const uint64_t> bits, std::vector<uint64_t>* words) const;
  void PlanHit(wire::CacheBit bit, std::span<const Snapshot> snapshots);
  Status Apply(const wire::ResponseList& list);
  Status ApplyJoined(const wire::ResponseList& list);
  // Erases an entry of the cache; false if the slot is free. A request of it that is pending here goes to rank 0.
  bool EraseFromCache(wire::CacheBit bit);
  Status ApplySettings(const std::string& text);
  Status ApplyResponse(const wire::Response& response);
  void ApplyFailure(const wire::Response& response);
  void InsertIntoCache(std::shared_ptr<const wire::Signature> signature, wire::Choice choice);
  void ApplyAllJoined(const wire::Response& response);
  void RunPlanner() { planner_.Run(joined_list_, divisor_ranks_); }
  void ApplyLeft(const std::vector<int32_t>& left);

  // ---- inline_allreduce.cc
  uint32_t InlineWords(const wire::Signature& signature, wire::Choice choice) const;
  // Fills `inline_bits_` with the agreed bits that run inline.
  void ChooseInline(std::span<const uint64_t> bits, std::span<const Snapshot> snapshots);
  size_t FindInline(const Snapshot& snapshot, uint8_t* offsets) const;
  bool RunsInline(wire::CacheBit bit) const {
    return next_inline_ < inline_bits_.size() && inline_bits_[next_inline_] == bit;
  }
  // Plans the next inline allreduce.
  void PlanInline(OpId op, const ResponseCache::Entry& entry, std::span<const Snapshot> snapshots);

  // ---- negotiation.cc
  Status AddSettings(wire::ResponseList* out);
  Status AddMerged(const MergedRequest& merged, const RankSet& joined_now, int64_t now_ns, wire::ResponseList* out);
  Status NoteErased(const wire::Request& request, int rank, wire::ResponseList* out) const;
  Status AddRequests(const wire::RequestList& list, const RankSet& joined_now, int64_t now_ns, wire::ResponseList* out);
  void NoteJoin(const wire::Signature& signature, int rank, RankSet* joined_now, wire::ResponseList* out);
  wire::Response AllJoined(int32_t last);
  void InspectStalls(const std::vector<const wire::RequestList*>& lists, const RoundOutcome& outcome,
                     const RankSet& joined_now, int64_t now_ns, wire::ResponseList* out);
  std::vector<PendingOp> CollectPending(const std::vector<const wire::RequestList*>& lists,
                                        const wire::ResponseList& out, int64_t now_ns) const;
  int64_t OldestPendingNs() const;
  void RequestDeadlockCheck(int64_t now_ns);

  bool joined_here() const { return join_state_ == JoinState::kJoined; }
  bool fuses() const { return config_.fusion_threshold_bytes > 0; }
  // The hash that all ranks compare in every round: they have the same cache and the same selector.
  uint64_t proof() const { return cache_.hash() ^ selector_hash_; }
  // True if all threads here wait for operations that are pending in the control plane. A thread that waits for a
  // running operation will go on.
  bool all_wait() const { return all_waiting_ && HasPending(); }

  ControllerConfig config_;  // its settings change in ApplySettings alone
  ResponseCache cache_;
  TensorQueue queue_;
  FusionPlanner planner_;
  std::deque<Failure> failures_;
  std::deque<std::string> reports_;
  std::deque<Settings> settings_;  // changed, and not handed out
  ControllerCounters counters_;
  uint64_t round_ = 0;
  uint64_t changes_ = 0;

  // Inputs from the runtime.
  bool waiting_ = false;
  bool all_waiting_ = false;
  bool computes_ = false;
  std::string last_done_;
  std::string note_;      // lines for the logs of all ranks
  size_t note_sent_ = 0;  // bytes of `note_` that the request list of this round carries
  bool asked_ = false;    // other ranks ask for the stack traces of this rank
  bool leaving_ = false;
  std::string abort_why_;
  bool closed_ = false;
  Status end_;  // why, once closed

  // Flushing. Uncached requests that are flushed but not sent raise kUncached.
  int64_t unflushed_since_ns_ = kNever;
  int64_t unflushed_bytes_ = 0;  // counted up to the threshold, and only while operations fuse
  size_t flushed_unsent_ = 0;

  JoinState join_state_ = JoinState::kNone;
  OpId join_op_ = kNoOp;
  wire::Signature join_signature_;
  RankSet joined_;
  std::vector<int32_t> joined_list_;                 // `joined_` as a list, for plans
  wire::DivideBy divide_by_ = wire::DivideBy::kAll;  // the choice of the first rank that joined
  int divisor_ranks_;                                // the divisor of averages

  // Stalls.
  bool stalled_ = false;
  int64_t over_limit_since_ns_ = kNever;  // set if that is why `stalled_` is raised
  int64_t next_inspect_ns_ = kNever;
  uint64_t raised_at_change_ = 0;
  uint64_t still_at_change_ = 0;
  int64_t still_since_ns_ = kNever;  // since then all threads have waited and nothing has changed

  // Rank 0 only.
  std::deque<std::string> new_settings_;  // one for each of the next rounds
  Coordinator coordinator_;
  wire::Signature first_join_;  // the join of the first rank that has joined
  int first_joined_ = -1;
  std::string join_mismatch_;  // the first difference of another join from first_join_
  // Every rank.
  uint64_t selector_hash_;
  StallInspector stalls_;                    // knows of operations on rank 0 only
  std::vector<uint64_t> agreed_bits_;        // bit words of this round's AND
  std::vector<wire::CacheBit> inline_bits_;  // the agreed bits that run inline, ascending
  size_t next_inline_ = 0;
  // kMaxPayloadWords entries per rank: the word of its payload at which the data of each entry of `inline_bits_`
  // begins.
  std::vector<uint8_t> inline_offsets_;
};

}  // namespace horocache::control
