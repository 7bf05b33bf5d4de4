#include "control/rank_set.h"

namespace horocache::control {

std::string RankText(const std::vector<int32_t>& ranks) {
  constexpr size_t kMost = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < kMost; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  if (ranks.size() > kMost) text += " and " + std::to_string(ranks.size() - kMost) + " more";
  return text;
}

std::string RankNames::Text(const std::vector<int32_t>& ranks) const {
  std::vector<int32_t> named;
  for (const int32_t rank : ranks) named.push_back(Of(rank));
  return RankText(named);
}

}  // namespace horocache::control
