#include "control/controller.h"

#include <algorithm>
#include <utility>

#include "control/bitvector.h"
#include "control/controller_impl.h"
#include "control/signature.h"
#include "wire/codec.h"

namespace horocache::control {

using wire::Signature;

// ---- inputs from the runtime

Status Controller::Impl::CheckOpen(const Signature& signature) const {
  if (closed) return {end.code(), Describe(signature) + " was submitted after the end: " + end.message()};
  if (leaving) {
    return {StatusCode::kShutDown, Describe(signature) + " was submitted after " + own_name() + " " + left() + "."};
  }
  if (join_state != JoinState::kNone) {
    return {StatusCode::kInvalidArgument,
            Describe(signature) + " was submitted after join() on " + own_name() + "; wait for the join first."};
  }
  return Status::Ok();
}

Status Controller::Impl::Submit(OpId op, const wire::Request& request, int64_t now_ns, std::span<const std::byte> data,
                                KnownEntry* known) {
  const Signature& signature = request.signature;
  if (closed || leaving || join_state != JoinState::kNone) return CheckOpen(signature);
  if (op == kNoOp) return {StatusCode::kInternal, Describe(signature) + " was submitted without a number."};
  if (signature.op == wire::Op::kJoin) return SubmitJoin(op, signature, now_ns);
  wire::CacheBit bit = wire::kNoBit;
  const auto found = cache.Find(signature, &bit, known);
  if (found == ResponseCache::Lookup::kHit) {
    HC_RETURN_IF_ERROR(table.AddHit(op, bit, now_ns, data));
    ++counters.hits;
  } else {
    HC_RETURN_IF_ERROR(Validate(signature, config.size));
    HC_RETURN_IF_ERROR(table.AddUncached(op, signature, now_ns));
    ++(found == ResponseCache::Lookup::kChanged ? counters.changed : counters.misses);
  }
  NoteSubmitted(now_ns);
  return Status::Ok();
}

Status Controller::Impl::SubmitJoin(OpId op, const Signature& signature, int64_t now_ns) {
  HC_RETURN_IF_ERROR(Validate(signature, config.size));
  join_state = JoinState::kSubmitted;
  join_op = op;
  join_signature = signature;
  NoteSubmitted(now_ns);
  return Status::Ok();
}

void Controller::Impl::NoteSubmitted(int64_t now_ns) {
  if (unflushed_since_ns == kNever) unflushed_since_ns = now_ns;
  if (next_inspect_ns == kNever && config.stall_check) next_inspect_ns = now_ns + config.stall_warn_ns;
  ++changes;
}

uint64_t Controller::Impl::Raised() const {
  if (closed) return 0;
  uint64_t raised = 0;
  if (flushed_unsent > 0 || !note.empty()) raised |= kUncached;
  // The requests submitted before join() need this rank's data, so they run before the other ranks go on without it.
  if (join_state == JoinState::kSubmitted && table.empty()) raised |= kJoining;
  if (leaving) raised |= kLeaving;
  if (!abort_why.empty()) raised |= kError;
  if (stalled) raised |= kStalled;
  return raised;
}

void Controller::Impl::Moved() {
  all_waiting = false;
  ++changes;
}

void ControllerCounters::Add(const ControllerCounters& other) {
  rounds += other.rounds;
  slow_rounds += other.slow_rounds;
  flushes += other.flushes;
  hits += other.hits;
  misses += other.misses;
  changed += other.changed;
  evictions += other.evictions;
  growths += other.growths;
  control_bytes += other.control_bytes;
  frames += other.frames;
  dropped_frames += other.dropped_frames;
}

Controller::Controller(ControllerConfig config) : impl_(std::make_unique<Impl>(std::move(config))) {}
Controller::~Controller() = default;

Status Controller::Submit(OpId op, const wire::Request& request, int64_t now_ns, std::span<const std::byte> data,
                          KnownEntry* known) {
  return impl_->Submit(op, request, now_ns, data, known);
}

void Controller::SetWaiting(bool waiting, bool all_waiting) {
  if ((waiting && !impl_->waiting) || (all_waiting && !impl_->all_waiting)) ++impl_->changes;
  impl_->waiting = waiting;
  impl_->all_waiting = waiting && all_waiting;
}

void Controller::SetComputes(bool computes) { impl_->computes = computes; }

void Controller::SetLastDone(const std::string& name) {
  impl_->last_done.assign(name, 0, std::min(name.size(), wire::kMaxNameBytes));
}

void Controller::SendNote(const std::string& note) {
  if (impl_->closed || note.empty()) return;
  impl_->note += (impl_->note.empty() ? "" : "\n") + note;
  ++impl_->changes;
}

void Controller::Leave() { impl_->leaving = true; }

void Controller::Abort(const std::string& why) {
  if (impl_->abort_why.empty()) impl_->abort_why = why.empty() ? "no reason given" : why;
}

void Controller::Lose(const Status& why) {
  impl_->End(why, [&](const Signature& signature) {
    return Status(why.code(),
                  Describe(signature) + " was pending on " + impl_->own_name() + " when it failed: " + why.message());
  });
}

// ---- outputs to the runtime

bool Controller::NextPlan(Plan* plan) { return impl_->planner.Next(plan); }

bool Controller::NextFailure(Failure* failure) {
  if (impl_->failures.empty()) return false;
  *failure = std::move(impl_->failures.front());
  impl_->failures.pop_front();
  return true;
}

bool Controller::NextReport(std::string* text) {
  if (impl_->reports.empty()) return false;
  *text = std::move(impl_->reports.front());
  impl_->reports.pop_front();
  return true;
}

bool Controller::TakeStackRequest() { return std::exchange(impl_->asked, false); }
bool Controller::closed() const { return impl_->closed; }
const Status& Controller::end() const { return impl_->end; }
bool Controller::HasPending() const { return impl_->has_pending(); }
const ControllerCounters& Controller::counters() const { return impl_->counters; }
uint64_t Controller::round() const { return impl_->round; }
uint64_t Controller::cache_hash() const { return impl_->cache.hash(); }
int64_t Controller::cache_size() const { return impl_->cache.size(); }

// ---- for Agreements

const ControllerConfig& Controller::config() const { return impl_->config; }
bool Controller::waiting() const { return impl_->waiting; }
bool Controller::HasUnflushed() const { return impl_->unflushed_since_ns != kNever; }
int64_t Controller::UnflushedSinceNs() const { return impl_->unflushed_since_ns; }

void Controller::Flush() {
  if (impl_->unflushed_since_ns == kNever) return;
  impl_->unflushed_since_ns = kNever;
  impl_->flushed_unsent = impl_->table.unsent();
  impl_->table.Flush();
  ++impl_->counters.flushes;
}

uint64_t Controller::Raised() const { return impl_->Raised(); }
bool Controller::HasHitsPending() const { return impl_->table.hits_pending() > 0 || impl_->joined_here(); }
uint64_t Controller::changes() const { return impl_->changes; }

void Controller::HintBitvector(bool lingering, std::vector<uint64_t>* words) const {
  impl_->WriteBitvector(Raised() | (lingering ? uint64_t{kLingering} : 0), impl_->table.flushed_words(), words);
}

void Controller::Freeze(std::vector<uint64_t>* words) {
  Flush();
  impl_->WriteBitvector(Raised(), impl_->table.pending_words(), words);
}

void Controller::WritePayload(std::vector<uint64_t>* payload) const { impl_->WritePayload(payload); }
bool Controller::MayRunInline(std::span<const uint64_t> words) const { return impl_->MayRunInline(words); }
RoundOutcome Controller::Intersect(std::span<const uint64_t> words, std::span<const Snapshot> snapshots) {
  return impl_->Intersect(words, snapshots);
}
void Controller::FillRequests(const RoundOutcome& outcome, int64_t now_ns, wire::RequestList* list) {
  impl_->FillRequests(outcome, now_ns, list);
}
Status Controller::Coordinate(std::span<const wire::RequestList> lists, const RoundOutcome& outcome, int64_t now_ns,
                              wire::ResponseList* responses, std::span<const MergedRequest> merged) {
  return impl_->Coordinate(lists, merged, outcome, now_ns, responses);
}
Status Controller::Finish(const wire::ResponseList* responses) { return impl_->Finish(responses); }

StatusOr<bool> Controller::Accept(const wire::RequestList& list, int from) {
  if (list.process_set != impl_->config.process_set || list.epoch != impl_->config.epoch) {
    ++impl_->counters.dropped_frames;
    return false;
  }
  if (list.rank != from || list.round != impl_->round || impl_->config.rank != 0) {
    const RankNames& names = impl_->config.names;
    return Status(StatusCode::kCorrupt, names.Text(from) + " sent a request list of " + names.Text(list.rank) +
                                            " for round " + std::to_string(list.round) + " while " + impl_->own_name() +
                                            " gathers round " + std::to_string(impl_->round) + ".");
  }
  return true;
}

StatusOr<bool> Controller::Accept(const wire::ResponseList& list) {
  if (list.process_set != impl_->config.process_set || list.epoch != impl_->config.epoch) {
    ++impl_->counters.dropped_frames;
    return false;
  }
  if (list.round != impl_->round) {
    return Status(StatusCode::kCorrupt, "responses of round " + std::to_string(list.round) + " came to " +
                                            impl_->own_name() + " in round " + std::to_string(impl_->round) + ".");
  }
  return true;
}

void Controller::CountSent(int frames, size_t bytes) {
  impl_->counters.frames += static_cast<uint64_t>(frames);
  impl_->counters.control_bytes += bytes;
}

int64_t Controller::NextInspectNs() const { return impl_->NextInspectNs(); }
void Controller::Inspect(int64_t now_ns) { impl_->Inspect(now_ns); }

void Controller::RaiseStalled() { impl_->RaiseStalled(); }
int64_t Controller::OverLimitSinceNs() const { return impl_->over_limit_since_ns; }

void Controller::AddReport(std::string text) { impl_->reports.push_back(std::move(text)); }

}  // namespace horocache::control
