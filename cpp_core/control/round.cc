// Part of Controller: the steps of a round on every rank. See Note [The steps of a round] in controller.h.
#include <algorithm>
#include <utility>

#include "control/bitvector.h"
#include "control/controller.h"
#include "control/join.h"
#include "control/signature.h"

namespace horocache::control {

using wire::CacheBit;
using wire::Response;
using wire::Signature;

// Algorithm 2 (CacheCoordination), SetBitVector: a bit for each cached request that is pending here, and the flags. A
// joined rank sets the bit of every entry.
void Controller::WriteBitvector(uint64_t raised, std::span<const uint64_t> bits, std::vector<uint64_t>* words) const {
  Bitvector::Write(raised | (waiting_ ? uint64_t{kWaiting} : 0), all_wait(), proof(), cache_.num_words(), words);
  const std::span<const uint64_t> shown = joined_here() ? cache_.occupied() : bits;
  std::ranges::copy(shown, words->begin() + kFirstBitWord);
}

// Algorithm 2, DecodeBitVector; then Algorithm 1 (RunCycleOnce), GetResponses and PerformOperation for the bits that
// all ranks have in common. This rank's other bits stay pending (PushMessageToQueue).
RoundOutcome Controller::ApplyAnd(std::span<const uint64_t> words, std::span<const Snapshot> snapshots) {
  RoundOutcome outcome;
  agreed_bits_.clear();
  const Bitvector agreed(words);
  if (agreed.empty()) return outcome;
  outcome.raised = agreed.raised();
  outcome.all_wait = agreed.all_wait();
  outcome.hashes_differ = !agreed.hashes_agree() || agreed.cache_bits().size() != cache_.num_words();
  outcome.gather = outcome.hashes_differ || (outcome.raised & kGatherFlags) != 0;
  if (outcome.hashes_differ || closed_) return outcome;
  const std::span<const uint64_t> bits = agreed.cache_bits();
  agreed_bits_.assign(bits.begin(), bits.end());
  if (!agreed.any_cache_bit()) return outcome;
  cache_.Touch(bits);
  ChooseInline(bits, snapshots);
  ForEachBit(bits, [&](CacheBit bit) {
    ++outcome.agreed;
    PlanHit(bit, snapshots);
  });
  RunPlanner();
  Moved();
  return outcome;
}

void Controller::PlanHit(CacheBit bit, std::span<const Snapshot> snapshots) {
  const ResponseCache::Entry* entry = cache_.At(bit);
  const OpId op = queue_.TakeHit(bit);
  if (entry == nullptr || (op == kNoOp && !joined_here())) {
    const Status why(StatusCode::kInternal, "all ranks agreed on cache bit " + std::to_string(bit) +
                                                ", which is not pending on " + own_name() + ".");
    End(why, [&](const Signature&) { return why; });
    return;
  }
  if (RunsInline(bit)) return PlanInline(op, *entry, snapshots);
  if (const Status status = CheckJoined(*entry->signature, joined_, config_.names); !status.ok()) {
    if (op != kNoOp) failures_.push_back({op, status});
    return;
  }
  planner_.Add(op, entry->signature, entry->choice, entry->bytes);
}

// Algorithm 1, the worker's part of MasterWorkerCoordination: this rank's UncachedRequestList.
void Controller::FillRequests(const RoundOutcome& outcome, int64_t now_ns, wire::RequestList* list) {
  *list = {};
  list->process_set = config_.process_set;
  list->epoch = config_.epoch;
  list->round = round_;
  list->rank = config_.rank;
  list->leaving = leaving_;
  list->all_waiting = all_wait();
  list->computes = computes_;
  list->error = abort_why_;
  list->last_done = last_done_;
  list->note = note_;
  note_sent_ = note_.size();
  if (outcome.hashes_differ) list->cache_hash = {proof()};
  queue_.Send([&](const Signature& signature) {
    wire::Request request{signature, wire::kNoBit};
    // Looked up now, not at submission: the entry may have been erased or inserted meanwhile.
    CacheBit bit = wire::kNoBit;
    if (cache_.Find(signature, &bit) != ResponseCache::Lookup::kMiss) request.changed_bit = bit;
    list->requests.push_back(std::move(request));
  });
  flushed_unsent_ = 0;
  if (join_state_ == JoinState::kSubmitted && queue_.empty()) {
    join_state_ = JoinState::kAnnounced;
    list->requests.push_back({join_signature_, wire::kNoBit});
  }
  if ((outcome.raised & kStalled) != 0 || all_wait()) {
    ForEachBit(queue_.pending_words(), [&](CacheBit bit) {
      const bool old = config_.stall_check && now_ns - queue_.hit(bit).submitted_ns >= config_.stall_warn_ns;
      (old ? list->stalled_bits : list->pending_bits).push_back(bit);
    });
  }
  if ((outcome.raised & kStalled) == 0) return;
  stalled_ = false;
  over_limit_since_ns_ = kNever;
  if (all_wait()) raised_at_change_ = changes_;  // the coordinator knows it now, whichever rank asked
}

// Algorithm 1, the end of the cycle: ResponseCache.put and PerformOperation for the coordinator's responses.
Status Controller::Finish(const wire::ResponseList* responses) {
  ++round_;
  ++counters_.rounds;
  if (responses == nullptr) return Status::Ok();
  ++counters_.slow_rounds;
  if (closed_) return Status::Ok();
  return Apply(*responses);
}

Status Controller::Apply(const wire::ResponseList& list) {
  // An aborting rank does not log the report: its program prints the reason at the same time, and the lines would mix.
  if (!list.report.empty() && abort_why_.empty()) reports_.push_back(list.report);
  // The coordinator has received all ranks' request lists. Lines that came since then go with the next one.
  if (note_sent_ > 0) note_.erase(0, note_sent_ + 1);  // with the line feed behind it
  note_sent_ = 0;
  asked_ |= std::ranges::find(list.late_ranks, config_.rank) != list.late_ranks.end();
  if (list.fatal != StatusCode::kOk) {
    End({list.fatal, list.report}, [&](const Signature& signature) {
      return Status(list.fatal, Describe(signature) + " was pending on " + own_name() + ": " + list.report);
    });
    return Status::Ok();
  }
  HC_RETURN_IF_ERROR(ApplyJoined(list));
  for (const CacheBit bit : list.erase) {
    if (EraseFromCache(bit)) continue;
    return {StatusCode::kCorrupt, "responses erase cache bit " + std::to_string(bit) + ", which is free."};
  }
  if (!list.settings.empty()) HC_RETURN_IF_ERROR(ApplySettings(list.settings));
  for (const Response& response : list.responses) HC_RETURN_IF_ERROR(ApplyResponse(response));
  RunPlanner();
  if (!list.erase.empty() || !list.responses.empty() || !list.joined.empty() || !list.settings.empty()) {
    // A request that lost its cache entry is shown to the other ranks at once, because they may wait for it.
    if (unflushed_since_ns_ == kNever) flushed_unsent_ = queue_.unsent();
    Moved();
  }
  if (!list.left.empty()) ApplyLeft(list.left);
  return Status::Ok();
}

bool Controller::EraseFromCache(CacheBit bit) {
  const ResponseCache::Entry* entry = cache_.At(bit);
  if (entry == nullptr) return false;
  const std::shared_ptr<const Signature> signature = entry->signature;
  cache_.Erase(bit);
  queue_.Demote(bit, *signature);
  return true;
}

// See Note [Settings change in one round] in settings.h.
Status Controller::ApplySettings(const std::string& text) {
  StatusOr<Settings> parsed = ParseSettings(text);
  Status status = parsed.status();
  if (status.ok() && parsed->table) status = config_.selector.SetTable(*parsed->table);
  if (!status.ok()) return {StatusCode::kCorrupt, "from " + config_.names.Text(0) + ": " + status.message()};
  if (parsed->fusion_threshold_bytes) {
    config_.fusion_threshold_bytes = *parsed->fusion_threshold_bytes;
    planner_.SetThreshold(config_.fusion_threshold_bytes);
  }
  if (parsed->cycle_time_ns) config_.cycle_time_ns = *parsed->cycle_time_ns;
  if (parsed->table) selector_hash_ = config_.selector.Hash();
  if (parsed->table || !parsed->cache.value_or(true)) {
    for (size_t bit = 0; bit < 64 * cache_.num_words(); ++bit) EraseFromCache(static_cast<CacheBit>(bit));
  }
  if (parsed->cache) cache_.Enable(*parsed->cache);
  settings_.push_back(std::move(*parsed));
  return Status::Ok();
}

// Note [The divisor of averages]
// A rank's join says whether averages are divided by the number of all ranks from then on, or by the number of ranks
// that still have data. The first rank that joins decides, from the responses of that round on; the coordinator tells
// all ranks its choice. So every rank knows the divisor of each operation, cached or not, without further
// communication, and the plan carries it to the backends. A rank that joins with another choice takes part all the
// same, and the join fails on all ranks when it is complete.
Status Controller::ApplyJoined(const wire::ResponseList& list) {
  if (joined_.empty()) divide_by_ = list.divide_by;
  for (const int32_t rank : list.joined) {
    if (rank < 0 || rank >= config_.size) return {StatusCode::kCorrupt, config_.names.Text(rank) + " has joined?"};
    joined_.Add(rank);
    if (rank == config_.rank) join_state_ = JoinState::kJoined;
  }
  joined_list_ = joined_.ToVector();
  divisor_ranks_ = divide_by_ == wire::DivideBy::kActive ? config_.size - joined_.count() : config_.size;
  return Status::Ok();
}

Status Controller::ApplyResponse(const Response& response) {
  if (response.signature.op == wire::Op::kJoin) {
    ApplyAllJoined(response);
    return Status::Ok();
  }
  if (response.code != StatusCode::kOk) {
    ApplyFailure(response);
    return Status::Ok();
  }
  HC_RETURN_IF_ERROR(Validate(response.signature, config_.size));
  const OpId op = queue_.TakeUncached(response.signature.name);
  if (op == kNoOp && !joined_here()) {
    return {StatusCode::kInternal, "the coordinator answered " + Describe(response.signature) +
                                       ", which is not pending on " + own_name() + "."};
  }
  auto signature = std::make_shared<const Signature>(response.signature);
  planner_.Add(op, signature, response.choice, SignatureBytes(*signature));
  if (cache_.enabled() && IsCacheable(signature->op)) InsertIntoCache(std::move(signature), response.choice);
  return Status::Ok();
}

void Controller::ApplyFailure(const Response& response) {
  if (!response.ranks.empty() && std::ranges::find(response.ranks, config_.rank) == response.ranks.end()) return;
  OpId op = queue_.TakeUncached(response.signature.name);
  if (op == kNoOp) {
    CacheBit bit = wire::kNoBit;
    if (cache_.Find(response.signature, &bit) != ResponseCache::Lookup::kMiss) op = queue_.TakeHit(bit);
  }
  if (op != kNoOp) failures_.push_back({op, Status(response.code, response.message)});
}

void Controller::InsertIntoCache(std::shared_ptr<const Signature> signature, wire::Choice choice) {
  const uint32_t inline_words = InlineWords(*signature, choice);
  const ResponseCache::Inserted inserted = cache_.Insert(std::move(signature), choice, inline_words);
  if (inserted.evicted != nullptr) {
    ++counters_.evictions;
    queue_.Demote(inserted.bit, *inserted.evicted);
  }
  if (!inserted.grew) return;
  if (counters_.growths++ == 0 && config_.rank == 0) {
    reports_.push_back("the response cache was too small for the operations in use and now grows (to " +
                       std::to_string(cache_.capacity()) +
                       " entries); set HOROCACHE_CACHE_CAPACITY to the number of different operations of one step.");
  }
}

void Controller::ApplyAllJoined(const Response& response) {
  RunPlanner();
  if (response.code == StatusCode::kOk) {
    planner_.AddJoin(join_op_, std::make_shared<const Signature>(join_signature_),
                     config_.names.Of(response.last_joined));
  } else if (join_op_ != kNoOp) {
    failures_.push_back({join_op_, Status(response.code, response.message)});
  }
  join_op_ = kNoOp;
  join_state_ = JoinState::kNone;
  joined_.Clear();
  joined_list_.clear();
  divisor_ranks_ = config_.size;
}

void Controller::ApplyLeft(const std::vector<int32_t>& left) {
  const std::string who = config_.names.Text(left) + (left.size() == 1 ? " has" : " have");
  const Status status(StatusCode::kShutDown, who + " " + this->left() + ".");
  End(status, [&](const Signature& signature) {
    return Status(StatusCode::kShutDown,
                  who + " " + this->left() + " while " + Describe(signature) + " was pending on " + own_name() +
                      ". Run the same number of operations on all ranks, or call join() on those that end early.");
  });
}

}  // namespace horocache::control
