// The state of a Controller; private to controller*.cc.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/duration.h"
#include "control/controller.h"
#include "control/coordinator.h"
#include "control/fusion_planner.h"
#include "control/rank_set.h"
#include "control/response_cache.h"
#include "control/stall_inspector.h"
#include "control/tensor_queue.h"

namespace horocache::control {

// The bytes reserved for last_done, so that a name of usual length needs no allocation.
inline constexpr size_t kUsualNameBytes = 256;
// How long a rank waits without a change, in ns, before it asks rank 0 to look for a deadlock.
inline constexpr int64_t kStillNs = 100'000'000;

struct Controller::Impl {
  explicit Impl(ControllerConfig config_in)
      : config(std::move(config_in)),
        cache(config.cache_capacity, config.cache_capacity_fixed),
        table(&cache),
        planner(config.fusion_threshold_bytes, config.disable_group_fusion, config.epoch),
        joined(config.size),
        coordinator(config.size, &config.selector, &config.names),
        selector_hash(config.selector.Hash()),
        stalls(config.stall_warn_ns, config.stall_fail_ns, config.stall_fail_computing, config.names) {
    divisor_ranks = config.size;
    last_done.reserve(kUsualNameBytes);
  }

  // A join waits until no earlier request of this rank is pending, is then announced to rank 0, and holds until all
  // ranks have joined.
  enum class JoinState { kNone, kSubmitted, kAnnounced, kJoined };

  std::string own_name() const { return config.names.Text(config.rank); }
  // How messages describe a rank that has left.
  std::string left() const {
    return config.process_set == 0 ? "shut down" : "left process set " + std::to_string(config.process_set);
  }

  // ---- controller.cc
  Status Submit(OpId op, const wire::Request& request, int64_t now_ns, std::span<const std::byte> data,
                KnownEntry* known);
  Status SubmitJoin(OpId op, const wire::Signature& signature, int64_t now_ns);
  Status CheckOpen(const wire::Signature& signature) const;
  void NoteSubmitted(int64_t now_ns);
  uint64_t Raised() const;
  // Ends the set: every pending operation fails with the status that `why` returns for its signature.
  template <typename F>
  void End(const Status& status, F&& why);
  void Moved();  // plans or failures were made, so all_waiting no longer holds

  // ---- round.cc
  void WriteBitvector(uint64_t raised, std::span<const uint64_t> bits, std::vector<uint64_t>* words) const;
  RoundOutcome Intersect(std::span<const uint64_t> words, std::span<const Snapshot> snapshots);
  void PlanHit(wire::CacheBit bit, std::span<const Snapshot> snapshots);
  void FillRequests(const RoundOutcome& outcome, int64_t now_ns, wire::RequestList* list);
  Status Finish(const wire::ResponseList* responses);
  Status Apply(const wire::ResponseList& list);
  Status ApplyJoined(const wire::ResponseList& list);
  Status ApplyResponse(const wire::Response& response);
  void ApplyFailure(const wire::Response& response);
  void InsertIntoCache(std::shared_ptr<const wire::Signature> signature, wire::Choice choice);
  void ApplyAllJoined(const wire::Response& response);
  void RunPlanner() { planner.Run(joined_list, divisor_ranks); }
  void ApplyLeft(const std::vector<int32_t>& left);

  // ---- inline_allreduce.cc
  uint32_t InlineWords(const wire::Signature& signature, wire::Choice choice) const;
  void WritePayload(std::vector<uint64_t>* payload) const;
  bool MayRunInline(std::span<const uint64_t> words) const;
  // Fills `inline_bits` with the agreed bits that run inline.
  void ChooseInline(std::span<const uint64_t> bits, std::span<const Snapshot> snapshots);
  size_t FindInline(const Snapshot& snapshot, uint8_t* offsets) const;
  bool RunsInline(wire::CacheBit bit) const {
    return next_inline < inline_bits.size() && inline_bits[next_inline] == bit;
  }
  // Plans the next inline allreduce.
  void PlanInline(OpId op, const ResponseCache::Entry& entry, std::span<const Snapshot> snapshots);

  // ---- negotiation.cc
  Status Coordinate(std::span<const wire::RequestList> lists, std::span<const MergedRequest> merged,
                    const RoundOutcome& outcome, int64_t now_ns, wire::ResponseList* out);
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
  void Inspect(int64_t now_ns);
  void RequestDeadlockCheck(int64_t now_ns);
  void RaiseStalled();
  int64_t NextInspectNs() const;

  bool joined_here() const { return join_state == JoinState::kJoined; }
  bool has_pending() const { return !table.empty() || join_op != kNoOp; }
  // The hash that all ranks compare in every round: they have the same cache and the same selector.
  uint64_t proof() const { return cache.hash() ^ selector_hash; }
  // True if all threads here wait for operations that are pending in the control plane. A thread that waits for a
  // running operation will go on.
  bool all_wait() const { return all_waiting && has_pending(); }

  const ControllerConfig config;
  ResponseCache cache;
  TensorQueue table;
  FusionPlanner planner;
  std::deque<Failure> failures;
  std::deque<std::string> reports;
  ControllerCounters counters;
  uint64_t round = 0;
  uint64_t changes = 0;

  // Inputs from the runtime.
  bool waiting = false;
  bool all_waiting = false;
  bool computes = false;
  std::string last_done;
  std::string note;      // lines for the logs of all ranks
  size_t note_sent = 0;  // bytes of `note` that the request list of this round carries
  bool asked = false;    // other ranks ask for the stack traces of this rank
  bool leaving = false;
  std::string abort_why;
  bool closed = false;
  Status end;  // why, once closed

  // Flushing. Uncached requests that are flushed but not sent raise kUncached.
  int64_t unflushed_since_ns = kNever;
  size_t flushed_unsent = 0;

  JoinState join_state = JoinState::kNone;
  OpId join_op = kNoOp;
  wire::Signature join_signature;
  RankSet joined;
  std::vector<int32_t> joined_list;                 // `joined` as a list, for plans
  wire::DivideBy divide_by = wire::DivideBy::kAll;  // the choice of the first rank that joined
  int divisor_ranks = 0;                            // the divisor of averages

  // Stalls.
  bool stalled = false;
  int64_t over_limit_since_ns = kNever;  // set if that is why `stalled` is raised
  int64_t next_inspect_ns = kNever;
  uint64_t raised_at_change = 0;
  uint64_t still_at_change = 0;
  int64_t still_since_ns = kNever;  // since then all threads have waited and nothing has changed

  // Rank 0 only.
  Coordinator coordinator;
  wire::Signature first_join;  // the join of the first rank that has joined
  int first_joined = -1;
  std::string join_mismatch;  // the first difference of another join from first_join
  // Every rank.
  const uint64_t selector_hash;
  StallInspector stalls;                    // knows of operations on rank 0 only
  std::vector<uint64_t> agreed_bits;        // bit words of this round's AND
  std::vector<wire::CacheBit> inline_bits;  // the agreed bits that run inline, ascending
  size_t next_inline = 0;
  // kMaxPayloadWords entries per rank: the word of its payload at which the data of each entry of `inline_bits` begins.
  std::vector<uint8_t> inline_offsets;
};

template <typename F>
void Controller::Impl::End(const Status& status, F&& why) {
  if (closed) return;
  closed = true;
  end = status;
  const auto fail = [&](OpId op, const wire::Signature& signature) { failures.push_back({op, why(signature)}); };
  table.Clear(fail);
  if (join_op != kNoOp) fail(join_op, join_signature);
  join_op = kNoOp;
  flushed_unsent = 0;
  unflushed_since_ns = kNever;
  next_inspect_ns = kNever;
  Moved();
}

}  // namespace horocache::control
