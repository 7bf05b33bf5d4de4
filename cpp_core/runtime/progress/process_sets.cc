#include "runtime/progress/process_sets.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "control/rank_set.h"

namespace horocache::runtime {
namespace {

constexpr const char* kUsed = "cannot have this number: it has been used.";

int PlaceOf(const std::vector<int>& ranks, int rank) {
  const auto found = std::ranges::lower_bound(ranks, rank);
  return found == ranks.end() || *found != rank ? -1 : static_cast<int>(found - ranks.begin());
}

std::string NameOf(uint32_t number, const std::vector<int>& ranks) {
  return "process set " + std::to_string(number) + " (" + control::RankText(ranks) + ")";
}

}  // namespace

ProcessSets::ProcessSets(int size) : size_(size) {
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  sets_.push_back({std::move(all), State::kOpen});
}

Status ProcessSets::Refused(uint32_t number, const std::vector<int>& ranks, const std::string& why) {
  return InvalidArgumentError("process set " + std::to_string(number) + " ([" + ListText(ranks) + "]) " + why);
}

Status ProcessSets::CheckRanks(uint32_t number, const std::vector<int>& ranks) const {
  if (ranks.empty()) return Refused(number, ranks, "has no ranks.");
  if (ranks.front() < 0 || ranks.back() >= size_) {
    return Refused(number, ranks,
                   "has ranks that the job does not have: it has " + std::to_string(size_) + ", 0 to " +
                       std::to_string(size_ - 1) + ".");
  }
  if (std::ranges::adjacent_find(ranks, std::ranges::greater_equal()) != ranks.end()) {
    return Refused(number, ranks, "must have distinct ranks in ascending order.");
  }
  return Status::Ok();
}

Status ProcessSets::CheckNew(uint32_t number, const std::vector<int>& ranks) const {
  if (number < sets_.size()) return Refused(number, ranks, kUsed);
  HC_RETURN_IF_ERROR(CheckRanks(number, ranks));
  const auto is_same = [&ranks](const Set& set) {
    return set.ranks == ranks && (set.state == State::kProposed || set.state == State::kOpen);
  };
  const auto same = std::ranges::find_if(sets_, is_same);
  if (same == sets_.end()) return Status::Ok();
  const auto other = same - sets_.begin();
  return Refused(number, ranks,
                 "has the ranks of " +
                     (other == 0 ? "the global process set" : "process set " + std::to_string(other)) +
                     ", which is registered already; use that one.");
}

uint32_t ProcessSets::next() const {
  MutexLock lock(mutex_);
  return static_cast<uint32_t>(sets_.size());
}

Status ProcessSets::Propose(uint32_t number, std::vector<int> ranks) {
  MutexLock lock(mutex_);
  HC_RETURN_IF_ERROR(CheckNew(number, ranks));
  Put(number, std::move(ranks));
  return Status::Ok();
}

Status ProcessSets::Declare(uint32_t number, std::vector<int> ranks) {
  MutexLock lock(mutex_);
  const bool used = number < sets_.size() && !sets_[number].ranks.empty();
  if (used) return Refused(number, ranks, kUsed);
  HC_RETURN_IF_ERROR(CheckRanks(number, ranks));
  Put(number, std::move(ranks));
  return Status::Ok();
}

void ProcessSets::Put(uint32_t number, std::vector<int> ranks) {
  // Other ranks have used the numbers in between.
  if (sets_.size() <= number) sets_.resize(number + 1, {{}, State::kClosed});
  sets_[number] = {std::move(ranks)};
}

void ProcessSets::Open(uint32_t number) {
  MutexLock lock(mutex_);
  sets_.at(number).state = State::kOpen;
}

void ProcessSets::Close(uint32_t number) {
  MutexLock lock(mutex_);
  sets_.at(number).state = State::kClosed;
}

std::vector<int> ProcessSets::ranks(uint32_t number) const {
  MutexLock lock(mutex_);
  return sets_.at(number).ranks;
}

std::vector<int> ProcessSets::OpenRanks(uint32_t number) const {
  MutexLock lock(mutex_);
  const Set* set = FindOpen(number);
  return set == nullptr ? std::vector<int>() : set->ranks;
}

std::vector<observe::SetMembers> ProcessSets::Members() const {
  MutexLock lock(mutex_);
  std::vector<observe::SetMembers> members;
  for (size_t number = 1; number < sets_.size(); ++number) {
    if (sets_[number].state != State::kClosed) members.push_back({static_cast<uint32_t>(number), sets_[number].ranks});
  }
  return members;
}

const ProcessSets::Set* ProcessSets::FindOpen(uint32_t number) const {
  return number < sets_.size() && sets_[number].state == State::kOpen ? &sets_[number] : nullptr;
}

int ProcessSets::CountOpen() const { return static_cast<int>(std::ranges::count(sets_, State::kOpen, &Set::state)); }

Status ProcessSets::CheckMember(uint32_t number, int rank, std::string_view what) const {
  if (number == 0 && rank < size_) return Status::Ok();  // without the lock: the usual case
  MutexLock lock(mutex_);
  const Set* set = FindOpen(number);
  if (set == nullptr) {
    return InvalidArgumentError(std::string(what) + ": there is no process set " +
                                std::to_string(static_cast<int32_t>(number)) + "; " + std::to_string(CountOpen() - 1) +
                                " are registered besides the global one");
  }
  if (PlaceOf(set->ranks, rank) >= 0) return Status::Ok();
  return InvalidArgumentError(std::string(what) + ": rank " + std::to_string(rank) + " is not in " +
                              NameOf(number, set->ranks));
}

Status ProcessSets::CheckPending(uint32_t number) const {
  MutexLock lock(mutex_);
  if (number > 0 && number < sets_.size() && sets_[number].state != State::kClosed) return Status::Ok();
  return InvalidArgumentError("process set " + std::to_string(static_cast<int32_t>(number)) + " has not been proposed");
}

Status ProcessSets::CheckRemovable(uint32_t number) const {
  MutexLock lock(mutex_);
  if (number > 0 && FindOpen(number) != nullptr) return Status::Ok();
  return InvalidArgumentError(number == 0 ? "the global process set cannot be removed"
                                          : "there is no process set " + std::to_string(number) + " to be removed");
}

int ProcessSets::RankIn(uint32_t number, int rank) const {
  MutexLock lock(mutex_);
  return PlaceOf(sets_.at(number).ranks, rank);
}

std::string ProcessSets::Describe(uint32_t number) const {
  MutexLock lock(mutex_);
  return NameOf(number, sets_.at(number).ranks);
}

std::string ProcessSets::AgreeText(const std::vector<std::vector<int>>& sets) {
  std::string text;
  for (size_t i = 0; i < sets.size(); ++i) {
    text += "process set " + std::to_string(i + 1) + "=" + ListText(sets[i]) + "\n";
  }
  return text;
}

}  // namespace horocache::runtime
