#include "control/controller.h"

#include <algorithm>
#include <utility>

#include "control/bitvector.h"
#include "control/signature.h"
#include "wire/codec.h"

namespace horocache::control {

namespace {

// The bytes reserved for last_done_, so that a name of usual length needs no allocation.
constexpr size_t kUsualNameBytes = 256;

}  // namespace

using wire::Signature;

// ---- inputs from the runtime

Status Controller::CheckOpen(const Signature& signature) const {
  if (closed_) return {end_.code(), Describe(signature) + " was submitted after the end: " + end_.message()};
  if (leaving_) {
    return {StatusCode::kShutDown, Describe(signature) + " was submitted after " + own_name() + " " + left() + "."};
  }
  if (join_state_ != JoinState::kNone) {
    return {StatusCode::kInvalidArgument,
            Describe(signature) + " was submitted after join() on " + own_name() + "; wait for the join first."};
  }
  return Status::Ok();
}

Status Controller::Submit(OpId op, const wire::Request& request, int64_t now_ns, std::span<const std::byte> data,
                          KnownEntry* known) {
  const Signature& signature = request.signature;
  if (!open()) return CheckOpen(signature);
  if (op == kNoOp) return {StatusCode::kInternal, Describe(signature) + " was submitted without a number."};
  if (signature.op == wire::Op::kJoin) return SubmitJoin(op, signature, now_ns);
  wire::CacheBit bit = wire::kNoBit;
  const auto found = cache_.Find(signature, &bit, known);
  if (found == ResponseCache::Lookup::kHit) {
    HC_RETURN_IF_ERROR(queue_.AddHit(op, bit, now_ns, data));
    ++counters_.hits;
    NoteSubmitted(now_ns, cache_.At(bit)->bytes);
  } else {
    HC_RETURN_IF_ERROR(Validate(signature, config_.size));
    HC_RETURN_IF_ERROR(queue_.AddUncached(op, signature, now_ns));
    ++(found == ResponseCache::Lookup::kChanged ? counters_.changed : counters_.misses);
    NoteSubmitted(now_ns, SignatureBytes(signature));
  }
  return Status::Ok();
}

Status Controller::SubmitJoin(OpId op, const Signature& signature, int64_t now_ns) {
  HC_RETURN_IF_ERROR(Validate(signature, config_.size));
  join_state_ = JoinState::kSubmitted;
  join_op_ = op;
  join_signature_ = signature;
  NoteSubmitted(now_ns, 0);
  return Status::Ok();
}

void Controller::NoteSubmitted(int64_t now_ns, int64_t bytes) {
  if (unflushed_since_ns_ == kNever) unflushed_since_ns_ = now_ns;
  if (fuses() && !HasFullFlush()) unflushed_bytes_ += bytes;
  if (next_inspect_ns_ == kNever && config_.stall_check) next_inspect_ns_ = now_ns + config_.stall_warn_ns;
  ++changes_;
}

uint64_t Controller::Raised() const {
  if (closed_) return 0;
  uint64_t raised = 0;
  if (flushed_unsent_ > 0 || !note_.empty() || !new_settings_.empty()) raised |= kUncached;
  // The requests submitted before join() need this rank's data, so they run before the other ranks go on without it.
  if (join_state_ == JoinState::kSubmitted && queue_.empty()) raised |= kJoining;
  if (leaving_) raised |= kLeaving;
  if (!abort_why_.empty()) raised |= kError;
  if (stalled_) raised |= kStalled;
  return raised;
}

void Controller::Moved() {
  all_waiting_ = false;
  ++changes_;
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

Controller::Controller(ControllerConfig config)
    : config_(std::move(config)),
      cache_(config_.cache_capacity, config_.cache_capacity_fixed),
      queue_(&cache_),
      planner_(config_.fusion_threshold_bytes, config_.disable_group_fusion, config_.epoch),
      joined_(config_.size),
      divisor_ranks_(config_.size),
      coordinator_(config_.size, &config_.selector, &config_.names),
      selector_hash_(config_.selector.Hash()),
      stalls_(config_.stall_warn_ns, config_.stall_fail_ns, config_.stall_fail_computing, config_.names) {
  last_done_.reserve(kUsualNameBytes);
}

Status Controller::Configure(const std::string& settings) {
  if (config_.rank != 0) {
    return InvalidArgumentError("settings: " + own_name() + " cannot change them; " + config_.names.Text(0) + " can.");
  }
  const StatusOr<Settings> parsed = ParseSettings(settings);
  if (!parsed.ok()) return parsed.status();
  if (parsed->table) HC_RETURN_IF_ERROR(Selector(config_.selector).SetTable(*parsed->table));
  if (closed_) return end_;
  new_settings_.push_back(settings);
  ++changes_;
  return Status::Ok();
}

bool Controller::NextSettings(Settings* settings) {
  if (settings_.empty()) return false;
  *settings = std::move(settings_.front());
  settings_.pop_front();
  return true;
}

// How messages describe a rank that has left.
std::string Controller::left() const {
  return config_.process_set == 0 ? "shut down" : "left process set " + std::to_string(config_.process_set);
}

void Controller::End(const Status& status, const std::function<Status(const Signature&)>& why) {
  if (closed_) return;
  closed_ = true;
  end_ = status;
  const auto fail = [&](OpId op, const Signature& signature) { failures_.push_back({op, why(signature)}); };
  queue_.Clear(fail);
  if (join_op_ != kNoOp) fail(join_op_, join_signature_);
  join_op_ = kNoOp;
  flushed_unsent_ = 0;
  unflushed_since_ns_ = kNever;
  next_inspect_ns_ = kNever;
  Moved();
}

void Controller::SetWaiting(bool waiting, bool all_waiting) {
  if ((waiting && !waiting_) || (all_waiting && !all_waiting_)) ++changes_;
  waiting_ = waiting;
  all_waiting_ = waiting && all_waiting;
}

void Controller::SetLastDone(const std::string& name) {
  last_done_.assign(name, 0, std::min(name.size(), wire::kMaxNameBytes));
}

void Controller::SendNote(const std::string& note) {
  if (closed_ || note.empty()) return;
  note_ += (note_.empty() ? "" : "\n") + note;
  ++changes_;
}

void Controller::Abort(const std::string& why) {
  if (abort_why_.empty()) abort_why_ = why.empty() ? "no reason given" : why;
}

void Controller::EndWith(const Status& why) {
  End(why, [&](const Signature& signature) {
    return Status(why.code(),
                  Describe(signature) + " was pending on " + own_name() + " when it failed: " + why.message());
  });
}

// ---- outputs to the runtime

bool Controller::NextPlan(Plan* plan) { return planner_.Next(plan); }

bool Controller::NextFailure(Failure* failure) {
  if (failures_.empty()) return false;
  *failure = std::move(failures_.front());
  failures_.pop_front();
  return true;
}

bool Controller::NextReport(std::string* text) {
  if (reports_.empty()) return false;
  *text = std::move(reports_.front());
  reports_.pop_front();
  return true;
}

// ---- for Agreements

void Controller::Flush() {
  if (unflushed_since_ns_ == kNever) return;
  unflushed_since_ns_ = kNever;
  unflushed_bytes_ = 0;
  flushed_unsent_ = queue_.unsent();
  queue_.Flush();
  ++counters_.flushes;
}

void Controller::HintBitvector(bool lingering, std::vector<uint64_t>* words) const {
  WriteBitvector(Raised() | (lingering ? uint64_t{kLingering} : 0), queue_.flushed_words(), words);
}

void Controller::Freeze(std::vector<uint64_t>* words) {
  Flush();
  WriteBitvector(Raised(), queue_.pending_words(), words);
}

StatusOr<bool> Controller::Accept(const wire::RequestList& list, int from) {
  if (list.process_set != config_.process_set || list.epoch != config_.epoch) {
    ++counters_.dropped_frames;
    return false;
  }
  if (list.rank != from || list.round != round_ || config_.rank != 0) {
    const RankNames& names = config_.names;
    return Status(StatusCode::kCorrupt, names.Text(from) + " sent a request list of " + names.Text(list.rank) +
                                            " for round " + std::to_string(list.round) + " while " + own_name() +
                                            " gathers round " + std::to_string(round_) + ".");
  }
  return true;
}

StatusOr<bool> Controller::Accept(const wire::ResponseList& list) {
  if (list.process_set != config_.process_set || list.epoch != config_.epoch) {
    ++counters_.dropped_frames;
    return false;
  }
  if (list.round != round_) {
    return Status(StatusCode::kCorrupt, "responses of round " + std::to_string(list.round) + " came to " + own_name() +
                                            " in round " + std::to_string(round_) + ".");
  }
  return true;
}

void Controller::CountSent(int frames, size_t bytes) {
  counters_.frames += static_cast<uint64_t>(frames);
  counters_.control_bytes += bytes;
}

}  // namespace horocache::control
