// A set of ranks of a process set, and how it reads in a message.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace horocache::control {

class RankSet {
 public:
  explicit RankSet(int size = 0) : in_(static_cast<size_t>(size)) {}

  int size() const { return static_cast<int>(in_.size()); }
  int count() const { return count_; }
  bool empty() const { return count_ == 0; }
  bool Has(int rank) const { return in_[static_cast<size_t>(rank)]; }
  void Add(int rank) {
    if (!Has(rank)) ++count_;
    in_[static_cast<size_t>(rank)] = true;
  }
  // Ranks of [begin, end), of which none is in the set.
  void AddNew(int begin, int end) {
    std::fill(in_.begin() + begin, in_.begin() + end, true);
    count_ += end - begin;
  }
  void Remove(int rank) {
    if (Has(rank)) --count_;
    in_[static_cast<size_t>(rank)] = false;
  }
  void Clear() { *this = RankSet(size()); }
  std::vector<int32_t> ToVector() const {
    std::vector<int32_t> ranks;
    for (int rank = 0; rank < size(); ++rank) {
      if (Has(rank)) ranks.push_back(rank);
    }
    return ranks;
  }

 private:
  std::vector<bool> in_;
  int count_ = 0;
};

// "rank 1" or "ranks 1, 3 and 7 more"; long lists are cut.
std::string RankText(const std::vector<int32_t>& ranks);

}  // namespace horocache::control
