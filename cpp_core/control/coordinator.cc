#include "control/coordinator.h"

#include <algorithm>

#include "base/text.h"
#include "control/join.h"
#include "control/mismatch.h"
#include "control/signature.h"

namespace horocache::control {

using wire::Response;
using wire::Signature;

Response MakeFailure(const Signature& signature, StatusCode code, std::string message, std::vector<int32_t> ranks) {
  Response response;
  response.signature = signature;
  response.code = code;
  response.message = std::move(message);
  response.ranks = std::move(ranks);
  return response;
}

Status Coordinator::Add(int rank, const wire::Request& request, const RankSet& joined, int64_t now_ns,
                        std::vector<Response>* responses) {
  const Signature& signature = request.signature;
  if (const Status valid = Validate(signature, size_); !valid.ok()) {
    return {StatusCode::kCorrupt,
            names_.Text(rank) + " sent a request that no rank could have made: " + valid.message()};
  }
  std::string text;
  if (conflicts_.TakeLate(rank, signature, &text)) {
    responses->push_back(MakeFailure(signature, StatusCode::kMismatch, text, {rank}));
    return Status::Ok();
  }
  if (const std::vector<std::string> names = conflicts_.Find(signature, &text); !names.empty()) {
    FailConflict(rank, signature, names, text, joined, responses);
    return Status::Ok();
  }
  auto found = pending_.find(signature.name);
  if (found == pending_.end()) {
    found =
        pending_.emplace(signature.name, Pending{signature, rank, RankSet(size_), {}, now_ns, next_sequence_++}).first;
    conflicts_.Add(signature);
  }
  Pending& pending = found->second;
  if (pending.has.Has(rank)) {
    return {StatusCode::kInternal, Describe(signature) + " came twice from " + names_.Text(rank) + "."};
  }
  if (pending.mismatch.empty() && !(signature == pending.signature)) {
    pending.mismatch = Difference(pending.signature, pending.first_rank, signature, rank, names_);
  }
  NoteDefect(rank, signature, &pending);
  pending.has.Add(rank);
  if (pending.has.count() + joined.count() >= size_) complete_.push_back(signature.name);
  return Status::Ok();
}

void Coordinator::NoteDefect(int rank, const Signature& signature, Pending* pending) const {
  constexpr size_t kEnough = 1024;  // bytes of text after which further defects are left out
  pending->input_failed |= signature.input_failed;
  if (signature.defect.empty() || pending->defects.size() > kEnough) return;
  pending->defects += (pending->defects.empty() ? "" : "; ") + names_.Text(rank) + " submitted " + signature.defect;
}

Status Coordinator::AddMerged(const MergedRequest& merged, const RankSet& joined, int64_t now_ns,
                              std::vector<Response>* responses) {
  const Signature& signature = merged.request.signature;
  std::string text;
  const bool has_defect = !signature.defect.empty() || signature.input_failed;
  const bool known = pending_.contains(signature.name) || has_defect || conflicts_.AnyRankLate() ||
                     !conflicts_.Find(signature, &text).empty() || !Validate(signature, size_).ok();
  if (known) {
    for (const RankRun& run : merged.ranks) {
      for (int32_t rank = run.begin; rank < run.end; ++rank) {
        HC_RETURN_IF_ERROR(Add(rank, merged.request, joined, now_ns, responses));
      }
    }
    return Status::Ok();
  }
  const int first_rank = merged.ranks.front().begin;
  Pending& pending =
      pending_.emplace(signature.name, Pending{signature, first_rank, RankSet(size_), {}, now_ns, next_sequence_++})
          .first->second;
  conflicts_.Add(signature);
  for (const RankRun& run : merged.ranks) pending.has.AddNew(run.begin, run.end);
  if (pending.has.count() + joined.count() >= size_) complete_.push_back(signature.name);
  return Status::Ok();
}

void Coordinator::Respond(const RankSet& joined, std::vector<Response>* responses) {
  if (joined.count() != joined_seen_) {  // a join may complete requests that only the joining rank lacked
    joined_seen_ = joined.count();
    for (const auto& [name, pending] : pending_) complete_.push_back(name);
  }
  std::vector<const Pending*> ready;
  std::ranges::sort(complete_);
  complete_.erase(std::unique(complete_.begin(), complete_.end()), complete_.end());
  for (const std::string& name : complete_) {
    const auto found = pending_.find(name);
    if (found == pending_.end()) continue;
    if (found->second.has.count() + joined.count() >= size_) ready.push_back(&found->second);
  }
  complete_.clear();
  std::ranges::sort(ready, {}, [](const Pending* pending) { return pending->sequence; });
  std::vector<std::string> answered;
  for (const Pending* pending : ready) {
    responses->push_back(Answer(*pending, joined));
    answered.push_back(pending->signature.name);
  }
  for (const std::string& name : answered) Drop(name);
}

void Coordinator::Drop(const std::string& name) {
  const auto found = pending_.find(name);
  if (found == pending_.end()) return;
  conflicts_.Remove(found->second.signature);
  pending_.erase(found);
}

void Coordinator::FailConflict(int rank, const Signature& signature, const std::vector<std::string>& names,
                               const std::string& key, const RankSet& joined, std::vector<Response>* responses) {
  const auto company = [&](const Signature& of) {
    return !IsGroup(of) ? "by itself" : "as a part of group '" + Printable(of.name) + "'";
  };
  const Pending& other = pending_.find(names.front())->second;
  const std::string message = "tensor '" + Printable(key) + "': " + names_.Text(other.first_rank) + " submitted it " +
                              company(other.signature) + ", " + names_.Text(rank) + " " + company(signature) + ". " +
                              MembersText(other.signature, other.first_rank, signature, rank, names_) +
                              "Form the same groups on all ranks.";
  RankSet alone(size_);
  alone.Add(rank);
  std::vector<GroupConflicts::Failed> failed = {{signature, alone}};
  std::vector<std::string> all = names;
  // Other ranks may have submitted the same request as this rank before; it fails for them as well.
  if (pending_.contains(signature.name)) all.push_back(signature.name);
  responses->push_back(MakeFailure(signature, StatusCode::kMismatch, message, {rank}));
  for (const std::string& name : all) {
    const Pending& pending = pending_.find(name)->second;
    responses->push_back(MakeFailure(pending.signature, StatusCode::kMismatch, message, pending.has.ToVector()));
    failed.push_back({pending.signature, pending.has});
  }
  for (const std::string& name : all) Drop(name);
  conflicts_.Remember(failed, message, joined);
}

Response Coordinator::Answer(const Pending& pending, const RankSet& joined) const {
  const auto defects = [&] { return Describe(pending.signature) + names_.OfSet() + ": " + pending.defects + "."; };
  // A difference beside it may follow from it.
  if (pending.input_failed) return MakeFailure(pending.signature, StatusCode::kInputFailed, defects());
  if (!pending.mismatch.empty()) return MakeFailure(pending.signature, StatusCode::kMismatch, pending.mismatch);
  if (!pending.defects.empty()) {
    return MakeFailure(pending.signature, StatusCode::kNonFinite,
                       defects() + " HOROCACHE_CHECK_FINITE makes this an error.");
  }
  if (const Status status = CheckJoined(pending.signature, joined, names_); !status.ok()) {
    return MakeFailure(pending.signature, status.code(), status.message());
  }
  Response response;
  response.signature = pending.signature;
  if (pending.signature.op == wire::Op::kRegister) return response;  // moves no data, so it needs no backend
  const StatusOr<wire::Choice> choice = selector_->Choose(pending.signature, SignatureBytes(pending.signature));
  if (!choice.ok()) return MakeFailure(pending.signature, choice.status().code(), choice.status().message());
  response.choice = *choice;
  return response;
}

}  // namespace horocache::control
