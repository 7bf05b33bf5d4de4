#include "runtime/process_sets.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "control/rank_set.h"

namespace horocache::runtime {

StatusOr<ProcessSets> ProcessSets::Make(int size, std::vector<std::vector<int>> sets) {
  ProcessSets made;
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  made.ranks_.push_back(std::move(all));
  for (std::vector<int>& ranks : sets) {
    const auto invalid = [&, number = made.size()](const std::string& why) {
      return Status(StatusCode::kInvalidArgument,
                    "process set " + std::to_string(number) + " ([" + ListText(ranks) + "]) " + why);
    };
    if (ranks.empty()) return invalid("has no ranks.");
    if (ranks.front() < 0 || ranks.back() >= size) {
      return invalid("has ranks that the job does not have: it has " + std::to_string(size) + ", 0 to " +
                     std::to_string(size - 1) + ".");
    }
    if (std::ranges::adjacent_find(ranks, std::ranges::greater_equal()) != ranks.end()) {
      return invalid("must have distinct ranks in ascending order.");
    }
    if (const auto same = std::ranges::find(made.ranks_, ranks); same != made.ranks_.end()) {
      const auto other = same - made.ranks_.begin();
      return invalid("has the ranks of " +
                     (other == 0 ? "the global process set" : "process set " + std::to_string(other)) +
                     ", which is registered already; use that one.");
    }
    made.ranks_.push_back(std::move(ranks));
  }
  return made;
}

int ProcessSets::RankIn(uint32_t number, int rank) const {
  const auto found = std::ranges::lower_bound(ranks_[number], rank);
  return found == ranks_[number].end() || *found != rank ? -1 : static_cast<int>(found - ranks_[number].begin());
}

std::string ProcessSets::Describe(uint32_t number) const {
  return "process set " + std::to_string(number) + " (" + control::RankText(ranks_[number]) + ")";
}

std::string ProcessSets::AgreeText(const std::vector<std::vector<int>>& sets) {
  std::string text;
  for (size_t i = 0; i < sets.size(); ++i) {
    text += "process set " + std::to_string(i + 1) + "=" + ListText(sets[i]) + "\n";
  }
  return text;
}

}  // namespace horocache::runtime
