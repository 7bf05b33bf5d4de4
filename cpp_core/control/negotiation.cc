// Part of Controller: rank 0's part of a round that gathers requests, and every rank's search for stalls.
#include <algorithm>
#include <map>
#include <utility>

#include "base/text.h"
#include "control/bitvector.h"
#include "control/controller.h"
#include "control/mismatch.h"
#include "control/signature.h"

namespace horocache::control {
namespace {

// How long a rank waits without a change, in ns, before it asks rank 0 to look for a deadlock.
constexpr int64_t kStillNs = 100'000'000;

using wire::CacheBit;
using wire::RequestList;
using wire::ResponseList;

// Returns the lists in order of rank; empty if a rank's list is missing or came twice.
std::vector<const RequestList*> SortByRank(std::span<const RequestList> lists, int size) {
  std::vector<const RequestList*> sorted(static_cast<size_t>(size));
  for (const RequestList& list : lists) {
    if (list.rank < 0 || list.rank >= size || sorted[static_cast<size_t>(list.rank)] != nullptr) return {};
    sorted[static_cast<size_t>(list.rank)] = &list;
  }
  if (std::ranges::find(sorted, nullptr) != sorted.end()) return {};
  return sorted;
}

std::string HashReport(const std::vector<const RequestList*>& lists, const RankNames& names) {
  std::map<uint64_t, std::vector<int32_t>> ranks_of;
  for (const RequestList* list : lists)
    ranks_of[list->cache_hash.empty() ? 0 : list->cache_hash[0]].push_back(list->rank);
  std::vector<std::vector<int32_t>> camps;
  for (auto& [hash, ranks] : ranks_of) camps.push_back(std::move(ranks));
  std::ranges::stable_sort(camps, [](const auto& a, const auto& b) { return a.size() > b.size(); });
  std::string text =
      "the response caches of the ranks" + names.OfSet() + " differ in round " + std::to_string(lists[0]->round) + ": ";
  for (size_t i = 1; i < camps.size(); ++i) text += (i > 1 ? ", " : "") + names.Text(camps[i]);
  return text + (camps.size() == 2 && camps[1].size() == 1 ? " differs from " : " differ from ") +
         names.Text(camps[0]) +
         ". If the ranks run one build of horocache this is a defect; please report it. HOROCACHE_CACHE_CAPACITY=0 "
         "avoids it, unless it is their tables of backends that differ.";
}

// True if the set cannot go on; *out then has the reason: different caches or, if they are equal, the ranks' aborts.
bool FindFatal(const std::vector<const RequestList*>& lists, const RoundOutcome& outcome, const RankNames& names,
               ResponseList* out) {
  if (outcome.hashes_differ) {
    out->fatal = StatusCode::kInternal;
    out->report = HashReport(lists, names);
    return true;
  }
  for (const RequestList* list : lists) {
    if (list->error.empty()) continue;
    out->fatal = StatusCode::kAborted;
    out->report += (out->report.empty() ? "" : "; ") + names.Text(list->rank) + " aborted: " + list->error;
  }
  return out->fatal != StatusCode::kOk;
}

}  // namespace

// Algorithm 1 (RunCycleOnce), the coordinator's part of MasterWorkerCoordination.
Status Controller::Coordinate(std::span<const RequestList> unsorted, const RoundOutcome& outcome, int64_t now_ns,
                              ResponseList* out, std::span<const MergedRequest> merged) {
  *out = {};
  out->process_set = config_.process_set;
  out->epoch = config_.epoch;
  out->round = round_;
  const std::vector<const RequestList*> lists = SortByRank(unsorted, config_.size);
  if (lists.empty()) return {StatusCode::kCorrupt, "a round's request lists do not come from each rank once."};
  if (FindFatal(lists, outcome, config_.names, out)) return Status::Ok();
  if (!new_settings_.empty()) HC_RETURN_IF_ERROR(AddSettings(out));
  RankSet joined_now = joined_;
  for (const RequestList* list : lists) {
    for (const wire::Request& request : list->requests) {
      if (request.signature.op == wire::Op::kJoin) NoteJoin(request.signature, list->rank, &joined_now, out);
    }
    if (list->leaving) out->left.push_back(list->rank);
  }
  for (const RequestList* list : lists) HC_RETURN_IF_ERROR(AddRequests(*list, joined_now, now_ns, out));
  for (const MergedRequest& request : merged) HC_RETURN_IF_ERROR(AddMerged(request, joined_now, now_ns, out));
  std::ranges::sort(out->erase);
  out->erase.erase(std::unique(out->erase.begin(), out->erase.end()), out->erase.end());
  coordinator_.Respond(joined_now, &out->responses);
  InspectStalls(lists, outcome, joined_now, now_ns, out);
  for (const RequestList* list : lists) {
    if (!list->note.empty()) out->report += (out->report.empty() ? "" : "\n") + list->note;
  }
  if (joined_now.count() == config_.size) out->responses.push_back(AllJoined(out->joined.back()));
  return Status::Ok();
}

// The responses of this round are chosen by the new table already.
Status Controller::AddSettings(ResponseList* out) {
  out->settings = std::move(new_settings_.front());
  new_settings_.pop_front();
  const StatusOr<Settings> parsed = ParseSettings(out->settings);
  if (!parsed.ok()) return parsed.status();
  return parsed->table ? config_.selector.SetTable(*parsed->table) : Status::Ok();
}

void Controller::NoteJoin(const wire::Signature& signature, int rank, RankSet* joined_now, ResponseList* out) {
  if (joined_now->Has(rank)) return;
  if (joined_now->empty()) {
    first_join_ = signature;
    first_joined_ = rank;
    join_mismatch_.clear();
    out->divide_by = signature.divide_by;
  } else if (join_mismatch_.empty() && signature.divide_by != first_join_.divide_by) {
    join_mismatch_ = Difference(first_join_, first_joined_, signature, rank, config_.names);
  }
  joined_now->Add(rank);
  out->joined.push_back(rank);
}

wire::Response Controller::AllJoined(int32_t last) {
  wire::Response response;
  response.signature.op = wire::Op::kJoin;
  response.last_joined = last;
  if (join_mismatch_.empty()) return response;
  response.code = StatusCode::kMismatch;
  response.message = join_mismatch_;
  return response;
}

Status Controller::AddRequests(const RequestList& list, const RankSet& joined_now, int64_t now_ns, ResponseList* out) {
  for (const wire::Request& request : list.requests) {
    if (request.signature.op == wire::Op::kJoin) continue;
    HC_RETURN_IF_ERROR(NoteErased(request, list.rank, out));
    HC_RETURN_IF_ERROR(coordinator_.Add(list.rank, request, joined_now, now_ns, &out->responses));
  }
  return Status::Ok();
}

Status Controller::NoteErased(const wire::Request& request, int rank, ResponseList* out) const {
  const CacheBit bit = request.changed_bit;
  if (bit == wire::kNoBit) return Status::Ok();
  const ResponseCache::Entry* entry = cache_.At(bit);
  if (entry == nullptr || entry->signature->name != request.signature.name) {
    return {StatusCode::kCorrupt, config_.names.Text(rank) + " says that " + Describe(request.signature) +
                                      " replaces cache bit " + std::to_string(bit) +
                                      ", which stands for another tensor."};
  }
  out->erase.push_back(bit);  // several ranks may list it: the caller removes duplicates
  return Status::Ok();
}

Status Controller::AddMerged(const MergedRequest& merged, const RankSet& joined_now, int64_t now_ns,
                             ResponseList* out) {
  if (merged.ranks.empty()) return {StatusCode::kCorrupt, "a merged request is of no rank."};
  HC_RETURN_IF_ERROR(NoteErased(merged.request, merged.ranks.front().begin, out));
  return coordinator_.AddMerged(merged, joined_now, now_ns, &out->responses);
}

// The pending operations with the ranks that have them: uncached ones as the coordinator counts them, cached ones as
// the request lists report them.
std::vector<PendingOp> Controller::CollectPending(const std::vector<const RequestList*>& lists, const ResponseList& out,
                                                  int64_t now_ns) const {
  std::vector<PendingOp> ops;
  std::vector<const Coordinator::Pending*> uncached;
  for (const auto& [name, pending] : coordinator_.pending()) uncached.push_back(&pending);
  std::ranges::sort(uncached, {}, [](const auto* pending) { return pending->sequence; });
  for (const auto* pending : uncached) {
    ops.push_back({pending->signature, pending->has, now_ns - pending->first_ns >= config_.stall_warn_ns, false});
  }
  std::map<CacheBit, PendingOp> cached;
  const auto note = [&](CacheBit bit, int rank, bool stalled_there) {
    const ResponseCache::Entry* entry = cache_.At(bit);
    if (entry == nullptr) return;  // a free slot: pending nowhere, and only this rank is wrong about it
    PendingOp& op =
        cached.try_emplace(bit, PendingOp{*entry->signature, RankSet(config_.size), false, false}).first->second;
    op.has.Add(rank);
    op.stalled |= stalled_there;
    op.moving = TestBit(agreed_bits_, bit) || std::ranges::binary_search(out.erase, bit);
  };
  for (const RequestList* list : lists) {
    for (const CacheBit bit : list->stalled_bits) note(bit, list->rank, true);
    for (const CacheBit bit : list->pending_bits) note(bit, list->rank, false);
  }
  for (auto& [bit, op] : cached) ops.push_back(std::move(op));
  return ops;
}

void Controller::InspectStalls(const std::vector<const RequestList*>& lists, const RoundOutcome& outcome,
                               const RankSet& joined_now, int64_t now_ns, ResponseList* out) {
  const bool look = config_.stall_check && (outcome.raised & kStalled) != 0;
  const bool some_wait = std::ranges::any_of(lists, [](const RequestList* list) { return list->all_waiting; });
  if (!look && !some_wait) return;
  std::vector<WaitingRank> ranks;
  for (const RequestList* list : lists)
    ranks.push_back({list->all_waiting && outcome.agreed == 0, list->last_done, list->computes});
  for (const wire::Response& response : out->responses) {
    for (const int32_t rank : response.ranks) ranks[static_cast<size_t>(rank)].all_waiting = false;
    if (!response.ranks.empty()) continue;
    for (WaitingRank& rank : ranks) rank.all_waiting = false;  // all ranks have it pending, and go on
  }
  StallInspector::Findings findings =
      stalls_.Inspect(CollectPending(lists, *out, now_ns), ranks, joined_now, look, now_ns);
  for (wire::Response& failure : findings.failures) {
    coordinator_.Drop(failure.signature.name);
    out->responses.push_back(std::move(failure));
  }
  out->report = std::move(findings.report);
  out->late_ranks = std::move(findings.late_ranks);
  next_inspect_ns_ = std::min(next_inspect_ns_, stalls_.NextFailNs());
}

int64_t Controller::OldestPendingNs() const {
  int64_t oldest_ns = kNever;
  ForEachBit(queue_.pending_words(),
             [&](CacheBit bit) { oldest_ns = std::min(oldest_ns, queue_.hit(bit).submitted_ns); });
  if (!queue_.uncached().empty()) oldest_ns = std::min(oldest_ns, queue_.uncached().begin()->first);
  for (const auto& [name, pending] : coordinator_.pending()) oldest_ns = std::min(oldest_ns, pending.first_ns);
  return oldest_ns;
}

// Asks rank 0 to look for a deadlock. Some ranks may wait for each other in a circle while the rest compute, and only
// the coordinator sees what all of them lack. A rank asks when it has waited for kStillNs without a change, and once
// for each change, because most waits are for slow ranks.
void Controller::RequestDeadlockCheck(int64_t now_ns) {
  if (closed_ || !all_wait() || unflushed_since_ns_ != kNever) {
    still_since_ns_ = kNever;
    return;
  }
  if (still_since_ns_ == kNever || still_at_change_ != changes_) {
    still_since_ns_ = now_ns;
    still_at_change_ = changes_;
  }
  if (now_ns - still_since_ns_ >= kStillNs) RaiseStalled();
}

void Controller::RaiseStalled() {
  if (raised_at_change_ == changes_ || closed_) return;
  raised_at_change_ = changes_;
  stalled_ = true;
}

int64_t Controller::NextInspectNs() const {
  const bool looks = still_since_ns_ != kNever && raised_at_change_ != changes_;
  return looks ? std::min(next_inspect_ns_, still_since_ns_ + kStillNs) : next_inspect_ns_;
}

void Controller::Inspect(int64_t now_ns) {
  RequestDeadlockCheck(now_ns);
  if (now_ns < next_inspect_ns_) return;
  const int64_t oldest_ns = OldestPendingNs();
  next_inspect_ns_ = kNever;
  if (oldest_ns == kNever || closed_) return;
  if (oldest_ns + config_.stall_warn_ns > now_ns) {
    next_inspect_ns_ = oldest_ns + config_.stall_warn_ns;
    return;
  }
  stalled_ = true;
  over_limit_since_ns_ = std::min(over_limit_since_ns_, now_ns);
  next_inspect_ns_ = now_ns + config_.stall_warn_ns;
  if (const int64_t fail_ns = stalls_.NextFailNs(); fail_ns > now_ns)
    next_inspect_ns_ = std::min(next_inspect_ns_, fail_ns);
}

}  // namespace horocache::control
