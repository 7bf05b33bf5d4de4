// The steps of a round on every rank. See Note [The steps of a round] in controller.h.
#include <algorithm>
#include <utility>

#include "control/bitvector.h"
#include "control/controller_impl.h"
#include "control/join.h"
#include "control/signature.h"

namespace horocache::control {

using wire::CacheBit;
using wire::Response;
using wire::Signature;

// Algorithm 2 (CacheCoordination), SetBitVector: a bit for each cached request that is pending here, and the flags. A
// joined rank sets the bit of every entry. The paper's Intersect is the channel's AND.
void Controller::Impl::WriteBitvector(uint64_t raised, std::span<const uint64_t> bits,
                                      std::vector<uint64_t>* words) const {
  Bitvector::Write(raised | (waiting ? uint64_t{kWaiting} : 0), all_wait(), proof(), cache.num_words(), words);
  const std::span<const uint64_t> shown = joined_here() ? cache.occupied() : bits;
  std::ranges::copy(shown, words->begin() + kFirstBitWord);
}

// Algorithm 2, DecodeBitVector; then Algorithm 1 (RunCycleOnce), GetResponses and PerformOperation for the bits that
// all ranks have in common. This rank's other bits stay pending (PushMessageToQueue).
RoundOutcome Controller::Impl::Intersect(std::span<const uint64_t> words, std::span<const Snapshot> snapshots) {
  RoundOutcome outcome;
  agreed_bits.clear();
  const Bitvector agreed(words);
  if (agreed.empty()) return outcome;
  outcome.raised = agreed.raised();
  outcome.all_wait = agreed.all_wait();
  outcome.hashes_differ = !agreed.hashes_agree() || agreed.cache_bits().size() != cache.num_words();
  outcome.gather = outcome.hashes_differ || (outcome.raised & kGatherFlags) != 0;
  if (outcome.hashes_differ || closed) return outcome;
  const std::span<const uint64_t> bits = agreed.cache_bits();
  agreed_bits.assign(bits.begin(), bits.end());
  if (!agreed.any_cache_bit()) return outcome;
  cache.Touch(bits);
  ChooseInline(bits, snapshots);
  ForEachBit(bits, [&](CacheBit bit) {
    ++outcome.agreed;
    PlanHit(bit, snapshots);
  });
  RunPlanner();
  Moved();
  return outcome;
}

void Controller::Impl::PlanHit(CacheBit bit, std::span<const Snapshot> snapshots) {
  const ResponseCache::Entry* entry = cache.At(bit);
  const OpId op = table.TakeHit(bit);
  if (entry == nullptr || (op == kNoOp && !joined_here())) {
    const Status why(StatusCode::kInternal, "all ranks agreed on cache bit " + std::to_string(bit) +
                                                ", which is not pending on " + own_name() + ".");
    End(why, [&](const Signature&) { return why; });
    return;
  }
  if (RunsInline(bit)) return PlanInline(op, *entry, snapshots);
  if (const Status status = CheckJoined(*entry->signature, joined, config.names); !status.ok()) {
    if (op != kNoOp) failures.push_back({op, status});
    return;
  }
  planner.Add(op, entry->signature, entry->choice, entry->bytes);
}

// Algorithm 1, the worker's part of MasterWorkerCoordination: this rank's UncachedRequestList.
void Controller::Impl::FillRequests(const RoundOutcome& outcome, int64_t now_ns, wire::RequestList* list) {
  *list = {};
  list->process_set = config.process_set;
  list->epoch = config.epoch;
  list->round = round;
  list->rank = config.rank;
  list->leaving = leaving;
  list->all_waiting = all_wait();
  list->computes = computes;
  list->error = abort_why;
  list->last_done = last_done;
  list->note = note;
  note_sent = note.size();
  if (outcome.hashes_differ) list->cache_hash = {proof()};
  table.Send([&](const Signature& signature) {
    wire::Request request{signature, wire::kNoBit};
    // Looked up now, not at submission: the entry may have been erased or inserted meanwhile.
    CacheBit bit = wire::kNoBit;
    if (cache.Find(signature, &bit) != ResponseCache::Lookup::kMiss) request.changed_bit = bit;
    list->requests.push_back(std::move(request));
  });
  flushed_unsent = 0;
  if (join_state == JoinState::kSubmitted && table.empty()) {
    join_state = JoinState::kAnnounced;
    list->requests.push_back({join_signature, wire::kNoBit});
  }
  if ((outcome.raised & kStalled) != 0 || all_wait()) {
    ForEachBit(table.pending_words(), [&](CacheBit bit) {
      const bool old = config.stall_check && now_ns - table.hit(bit).submitted_ns >= config.stall_warn_ns;
      (old ? list->stalled_bits : list->pending_bits).push_back(bit);
    });
  }
  if ((outcome.raised & kStalled) == 0) return;
  stalled = false;
  over_limit_since_ns = kNever;
  if (all_wait()) raised_at_change = changes;  // the coordinator knows it now, whichever rank asked
}

// Algorithm 1, the end of the cycle: ResponseCache.put and PerformOperation for the coordinator's responses.
Status Controller::Impl::Finish(const wire::ResponseList* responses) {
  ++round;
  ++counters.rounds;
  if (responses == nullptr) return Status::Ok();
  ++counters.slow_rounds;
  if (closed) return Status::Ok();
  return Apply(*responses);
}

Status Controller::Impl::Apply(const wire::ResponseList& list) {
  // An aborting rank does not log the report: its program prints the reason at the same time, and the lines would mix.
  if (!list.report.empty() && abort_why.empty()) reports.push_back(list.report);
  // The coordinator has received all ranks' request lists. Lines that came since then go with the next one.
  if (note_sent > 0) note.erase(0, note_sent + 1);  // with the line feed behind it
  note_sent = 0;
  asked |= std::ranges::find(list.late_ranks, config.rank) != list.late_ranks.end();
  if (list.fatal != StatusCode::kOk) {
    End({list.fatal, list.report}, [&](const Signature& signature) {
      return Status(list.fatal, Describe(signature) + " was pending on " + own_name() + ": " + list.report);
    });
    return Status::Ok();
  }
  HC_RETURN_IF_ERROR(ApplyJoined(list));
  for (const CacheBit bit : list.erase) {
    const ResponseCache::Entry* entry = cache.At(bit);
    if (entry == nullptr) {
      return {StatusCode::kCorrupt, "responses erase cache bit " + std::to_string(bit) + ", which is free."};
    }
    const std::shared_ptr<const Signature> signature = entry->signature;
    cache.Erase(bit);
    table.Demote(bit, *signature);
  }
  for (const Response& response : list.responses) HC_RETURN_IF_ERROR(ApplyResponse(response));
  RunPlanner();
  if (!list.erase.empty() || !list.responses.empty() || !list.joined.empty()) {
    // A request that lost its cache entry is shown to the other ranks at once, because they may wait for it.
    if (unflushed_since_ns == kNever) flushed_unsent = table.unsent();
    Moved();
  }
  if (!list.left.empty()) ApplyLeft(list.left);
  return Status::Ok();
}

// Note [The divisor of averages]
// A rank's join says whether averages are divided by the number of all ranks from then on, or by the number of ranks
// that still have data. The first rank that joins decides, from the responses of that round on; the coordinator tells
// all ranks its choice. So every rank knows the divisor of each operation, cached or not, without further
// communication, and the plan carries it to the backends. A rank that joins with another choice takes part all the
// same, and the join fails on all ranks when it is complete.
Status Controller::Impl::ApplyJoined(const wire::ResponseList& list) {
  if (joined.empty()) divide_by = list.divide_by;
  for (const int32_t rank : list.joined) {
    if (rank < 0 || rank >= config.size) return {StatusCode::kCorrupt, config.names.Text(rank) + " has joined?"};
    joined.Add(rank);
    if (rank == config.rank) join_state = JoinState::kJoined;
  }
  joined_list = joined.ToVector();
  divisor_ranks = divide_by == wire::DivideBy::kActive ? config.size - joined.count() : config.size;
  return Status::Ok();
}

Status Controller::Impl::ApplyResponse(const Response& response) {
  if (response.signature.op == wire::Op::kJoin) {
    ApplyAllJoined(response);
    return Status::Ok();
  }
  if (response.code != StatusCode::kOk) {
    ApplyFailure(response);
    return Status::Ok();
  }
  HC_RETURN_IF_ERROR(Validate(response.signature, config.size));
  const OpId op = table.TakeUncached(response.signature.name);
  if (op == kNoOp && !joined_here()) {
    return {StatusCode::kInternal, "the coordinator answered " + Describe(response.signature) +
                                       ", which is not pending on " + own_name() + "."};
  }
  auto signature = std::make_shared<const Signature>(response.signature);
  planner.Add(op, signature, response.choice, SignatureBytes(*signature));
  if (cache.enabled() && IsCacheable(signature->op)) InsertIntoCache(std::move(signature), response.choice);
  return Status::Ok();
}

void Controller::Impl::ApplyFailure(const Response& response) {
  if (!response.ranks.empty() && std::ranges::find(response.ranks, config.rank) == response.ranks.end()) return;
  OpId op = table.TakeUncached(response.signature.name);
  if (op == kNoOp) {
    CacheBit bit = wire::kNoBit;
    if (cache.Find(response.signature, &bit) != ResponseCache::Lookup::kMiss) op = table.TakeHit(bit);
  }
  if (op != kNoOp) failures.push_back({op, Status(response.code, response.message)});
}

void Controller::Impl::InsertIntoCache(std::shared_ptr<const Signature> signature, wire::Choice choice) {
  const uint32_t inline_words = InlineWords(*signature, choice);
  const ResponseCache::Inserted inserted = cache.Insert(std::move(signature), choice, inline_words);
  if (inserted.evicted != nullptr) {
    ++counters.evictions;
    table.Demote(inserted.bit, *inserted.evicted);
  }
  if (!inserted.grew) return;
  if (counters.growths++ == 0 && config.rank == 0) {
    reports.push_back("the response cache was too small for the operations in use and now grows (to " +
                      std::to_string(cache.capacity()) +
                      " entries); set HOROCACHE_CACHE_CAPACITY to the number of different operations of one step.");
  }
}

void Controller::Impl::ApplyAllJoined(const Response& response) {
  RunPlanner();
  if (response.code == StatusCode::kOk) {
    planner.AddJoin(join_op, std::make_shared<const Signature>(join_signature), config.names.Of(response.last_joined));
  } else if (join_op != kNoOp) {
    failures.push_back({join_op, Status(response.code, response.message)});
  }
  join_op = kNoOp;
  join_state = JoinState::kNone;
  joined.Clear();
  joined_list.clear();
  divisor_ranks = config.size;
}

void Controller::Impl::ApplyLeft(const std::vector<int32_t>& left) {
  const std::string who = config.names.Text(left) + (left.size() == 1 ? " has" : " have");
  const Status status(StatusCode::kShutDown, who + " " + this->left() + ".");
  End(status, [&](const Signature& signature) {
    return Status(StatusCode::kShutDown,
                  who + " " + this->left() + " while " + Describe(signature) + " was pending on " + own_name() +
                      ". Run the same number of operations on all ranks, or call join() on those that end early.");
  });
}

}  // namespace horocache::control
