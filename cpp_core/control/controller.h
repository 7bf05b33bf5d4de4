// One rank's view of one process set: what is pending, what all have agreed on, and what to do next.
//
// Note [Cache positions are identical on all ranks]
// Every insertion, touch, erasure and growth of the response cache is derived from the agreed words and the agreed
// response list of a round, and applied in the same order on every rank before the next round's snapshot is frozen. So
// a bit means the same everywhere without being agreed on, and two words of hash (h and ~h) in each snapshot prove it
// in every round.
//
// Note [Stacks of laggards]
// A stall report says which ranks lack an operation; only these can say why. So the response list that carries the
// report asks some of them, and what a rank has to say, a moment later, goes up as the note of a request list and down
// again as the next report: every rank prints it. A rank that is stopped says nothing, and nobody waits for it.
//
// Note [Operations that ride on a round]
// A cached allreduce of a few bytes needs no exchange of its own. Every rank's snapshot carries, behind the words, the
// data of its pending requests that may ride; when the AND agrees on such a bit, every rank has all ranks' data at hand
// and folds it by itself. What rides follows from what all ranks see alike:
// * Whether an entry may ride is decided once, when it is inserted, from its signature, its choice and the settings.
// * Where a bit's data lies in a rank's payload follows from that rank's own bits: those that may ride, ascending, each
//   in whole words, up to the first that does not fit into kMaxPayloadWords, or whose data the rank does not have.
// * An agreed bit rides if its data, and that of every agreed bit before it that may ride, is in every rank's payload.
//   The others are fused and run in a lane, as if nothing could ride.
// A rank that has joined has bits and no data, so while one has, nothing rides. Agreements that hand on an AND instead
// of letting all ranks read all snapshots give no payloads, and nothing rides either. A payload of the wrong length
// costs rides, on all ranks alike, and never a read beyond its end.
//
// Role: coordinator. Pure: no clock, lock or I/O; `now_ns` comes in, decisions go out. An Agreement drives it over a
// ControlChannel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "control/merged_request.h"
#include "control/plan.h"
#include "control/rank_set.h"
#include "control/selector.h"
#include "control/words.h"
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
  bool cache_capacity_fixed = false;  // the user chose it: never grow
  int64_t fusion_threshold_bytes = 128 << 20;
  bool disable_group_fusion = false;
  int64_t ride_max_bytes = kMaxRideBytes;  // of an operation that may ride on a round; 0: none
  bool tick = false;                       // cycle_mode == "tick"
  int64_t cycle_time_ns = 1000000;
  bool stall_check = true;
  int64_t stall_warn_ns = 10'000'000'000;
  int64_t stall_fail_ns = 600'000'000'000;  // 0: never
  bool stall_fail_computing = false;        // also where a rank that lacks the operation computes
  Selector selector;

  // A cycle_time of 0 in tick mode means "as often as possible", not "without end in one call".
  int64_t TickNs() const { return std::max<int64_t>(cycle_time_ns, 10'000); }
};

struct ControllerCounters {
  uint64_t rounds = 0;
  uint64_t slow_rounds = 0;  // that gathered requests
  uint64_t flushes = 0;      // snapshots and hints that carried new requests
  uint64_t hits = 0, misses = 0, changed = 0, evictions = 0, growths = 0;
  uint64_t control_bytes = 0;  // words and frames that this rank published or sent
  uint64_t frames = 0;
  uint64_t dropped_frames = 0;  // of another process set or epoch

  void Add(const ControllerCounters& other);
};

// What the AND of a round's words said.
struct RoundOutcome {
  uint64_t raised = 0;         // WordFlag bits (words.h) that some rank raised
  bool all_wait = false;       // every thread of every rank that ever submitted waits
  bool hashes_differ = false;  // the caches are not equal: nothing of this round runs
  int agreed = 0;              // cached requests that all ranks have pending: planned now
  bool gather = false;         // requests must meet at the coordinator before the round can end
};

class Controller {
 public:
  explicit Controller(ControllerConfig config);
  ~Controller();

  // ---- what the runtime says ----
  // Takes the request into the tensor table. kDuplicateName if the name, or a member's, is pending; kShutDown (or the
  // loss) after the end. Steady state (cached, unchanged signature): one look-up and no allocation. `data`: what is to
  // be reduced, its tensors one after the other, if that is short enough to ride on a round; copied. `known`: see
  // ResponseCache::Find.
  Status Submit(OpId op, const wire::Request& request, int64_t now_ns, std::span<const std::byte> data = {},
                KnownEntry* known = nullptr);
  // `waiting`: some thread of this rank waits for an operation. `all_waiting`: every thread that ever submitted does,
  // and no operation that was planned still runs, so nothing more will come. Taken back by every plan and failure: say
  // it anew before each Step.
  void SetWaiting(bool waiting, bool all_waiting);
  // Whether this rank's threads have run lately, besides those of the core: who waits for it waits for an answer.
  void SetComputes(bool computes);
  // The last thing this rank completed, for stall reports.
  void SetLastDone(const std::string& name);
  // For the people of all ranks; travels with the next round.
  void Tell(const std::string& note);
  // This rank shuts down: announced in the next round; closed() once all have agreed.
  void Leave();
  // This rank cannot go on; all ranks' pending operations fail with kAborted and this text.
  void Abort(const std::string& why);
  // A rank is gone: everything pending fails with `why` at once, and so does every later Submit.
  void Lose(const Status& why);

  // ---- what the runtime is told, in this order of calls after every Agreement::Step ----
  bool NextPlan(Plan* plan);  // reuses the vectors in *plan
  bool NextFailure(Failure* failure);
  bool NextReport(std::string* text);  // a warning for people: stall report, cache growth
  bool TakeQuestion();                 // once: the others want to know where this rank is
  bool closed() const;                 // the set has ended; plans handed out before are still to be run
  const Status& end() const;           // why; ok while it is not closed
  bool HasPending() const;             // something was submitted that is neither planned nor failed
  const ControllerCounters& counters() const;
  uint64_t round() const;
  uint64_t cache_hash() const;
  int64_t cache_size() const;

  // ---- what an Agreement uses: see agreement.h ----
  //
  // Note [The steps of a round]
  // Freeze gives this rank's words of round(); the AND of all ranks' words goes to Intersect on every rank, which hands
  // out the agreed hits at once. If the outcome says `gather`, every rank's FillRequests goes to rank 0, Coordinate
  // turns them into one ResponseList, and every rank gives it to Finish; else every rank calls Finish(nullptr). Finish
  // ends the round. This is Algorithm 1 (RunCycleOnce) of the paper, cut where a rank would have to wait. Where every
  // rank reads all snapshots, WritePayload follows Freeze, and Intersect gets them if MayRide says so.
  const ControllerConfig& config() const;
  bool waiting() const;
  // Submissions that the hint does not show yet, and since when.
  bool HasUnflushed() const;
  int64_t UnflushedSinceNs() const;
  void Flush();
  // WordFlag bits that this rank raises, of what was flushed.
  uint64_t Raised() const;
  bool HasHitsPending() const;  // cached requests wait for agreement here (or this rank has joined)
  // Counts what could make a round worth proposing: submissions, waits that begin, rounds that moved something.
  uint64_t changes() const;
  void HintWords(bool lingering, std::vector<uint64_t>* words) const;
  // Flushes, then writes this rank's snapshot of round().
  void Freeze(std::vector<uint64_t>* words);
  void WritePayload(std::vector<uint64_t>* payload) const;
  bool MayRide(std::span<const uint64_t> words) const;
  RoundOutcome Intersect(std::span<const uint64_t> words, std::span<const Snapshot> snapshots = {});
  void FillRequests(const RoundOutcome& outcome, int64_t now_ns, wire::RequestList* list);
  // Rank 0 alone. `lists` has one entry per rank, in any order. `merged` has requests that are in no list because
  // several ranks made them alike; joining is never merged.
  Status Coordinate(std::span<const wire::RequestList> lists, const RoundOutcome& outcome, int64_t now_ns,
                    wire::ResponseList* responses, std::span<const MergedRequest> merged = {});
  Status Finish(const wire::ResponseList* responses);
  // True if the frame is of this process set and epoch; counted as dropped else. Not ok if it belongs to no round that
  // can be under way.
  StatusOr<bool> Accept(const wire::RequestList& list, int from);
  StatusOr<bool> Accept(const wire::ResponseList& list);
  void CountSent(int frames, size_t bytes);
  // Stalls. Inspect raises the stalled flag if something is pending for too long, or all threads wait and nothing
  // changes; to be called when NextInspectNs has come. RaiseStalled does so at once, but only if something changed here
  // since the last time.
  int64_t NextInspectNs() const;
  void Inspect(int64_t now_ns);
  void RaiseStalled();
  // Since when something here has been pending for the whole limit, and not told to rank 0 yet; kNever if nothing has.
  int64_t OverLimitSinceNs() const;
  void AddReport(std::string text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace horocache::control
