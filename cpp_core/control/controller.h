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
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "control/bitvector.h"
#include "control/merged_request.h"
#include "control/plan.h"
#include "control/rank_set.h"
#include "control/selector.h"
#include "wire/message.h"

namespace horocache::control {

struct KnownEntry;

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
  ~Controller();

  // ---- inputs from the runtime ----
  // Adds the request to the tensor table. kDuplicateName if its name, or a member's, is pending; kShutDown (or the
  // loss) after the end. Steady state (cached, unchanged signature): one lookup and no allocation. `data`: this rank's
  // input, its tensors one after the other, if it is short enough to run inline; it is copied. `known`: see
  // ResponseCache::Find.
  Status Submit(OpId op, const wire::Request& request, int64_t now_ns, std::span<const std::byte> data = {},
                KnownEntry* known = nullptr);
  // `waiting`: a thread of this rank waits for an operation. `all_waiting`: every thread that ever submitted waits, and
  // no planned operation still runs, so nothing more will come. Every plan and every failure resets `all_waiting`: call
  // this before each Step.
  void SetWaiting(bool waiting, bool all_waiting);
  // `computes`: threads of this rank, other than the core's, have run lately, so ranks that wait for this one may still
  // get what they wait for.
  void SetComputes(bool computes);
  // The name of the last operation that this rank completed, for stall reports.
  void SetLastDone(const std::string& name);
  // Sends the note to the logs of all ranks, with the next round.
  void SendNote(const std::string& note);
  // This rank leaves: the next round announces it, and that round closes the set on all ranks.
  void Leave();
  // This rank cannot go on: the pending operations of all ranks fail with kAborted and this text.
  void Abort(const std::string& why);
  // A rank is lost: everything pending fails with `why` at once, and so does every later Submit.
  void Lose(const Status& why);

  // ---- outputs to the runtime, to be taken after every Agreement::Step ----
  bool NextPlan(Plan* plan);  // reuses the vectors in *plan
  bool NextFailure(Failure* failure);
  bool NextReport(std::string* text);  // a warning for the log: stall report, cache growth
  bool TakeStackRequest();             // true, once, if other ranks ask for this rank's stack traces
  bool closed() const;                 // true if the set has ended; plans handed out before still run
  const Status& end() const;           // why the set has ended; ok while it is open
  bool HasPending() const;             // true if a request was submitted that is neither planned nor failed
  const ControllerCounters& counters() const;
  uint64_t round() const;
  uint64_t cache_hash() const;
  int64_t cache_size() const;

  // ---- for Agreements, see agreement.h ----
  //
  // Note [The steps of a round]
  // Freeze writes this rank's bitvector of round(). Every rank gives the AND of all ranks' bitvectors to Intersect,
  // which plans the agreed hits at once. If the outcome says `gather`, every rank sends the list that FillRequests
  // writes to rank 0, where Coordinate turns all lists into one ResponseList, and every rank gives that to Finish;
  // otherwise every rank calls Finish(nullptr). Finish ends the round. This is Algorithm 1 (RunCycleOnce) of the paper,
  // cut where a rank would have to wait. Where every rank reads all snapshots, WritePayload follows Freeze, and
  // Intersect gets the snapshots if MayRunInline returns true.
  const ControllerConfig& config() const;
  bool waiting() const;
  // True if some submissions are not flushed yet; UnflushedSinceNs is the time of the first of them, or kNever.
  bool HasUnflushed() const;
  int64_t UnflushedSinceNs() const;
  // Lets HintBitvector show all submissions made so far.
  void Flush();
  // The StatusFlag bits that this rank raises. kUncached stands for flushed requests only.
  uint64_t Raised() const;
  bool HasHitsPending() const;  // true if cached requests are pending here, or if this rank has joined
  // Counts the events that could make a round worth proposing: submissions, waits that begin, rounds that moved
  // something.
  uint64_t changes() const;
  void HintBitvector(bool lingering, std::vector<uint64_t>* words) const;
  // Flushes, then writes this rank's snapshot of round().
  void Freeze(std::vector<uint64_t>* words);
  void WritePayload(std::vector<uint64_t>* payload) const;
  bool MayRunInline(std::span<const uint64_t> words) const;
  RoundOutcome Intersect(std::span<const uint64_t> words, std::span<const Snapshot> snapshots = {});
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
  int64_t OverLimitSinceNs() const;
  void AddReport(std::string text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace horocache::control
