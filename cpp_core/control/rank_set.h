// A set of ranks of a process set, and the names of ranks in messages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
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
  // Adds the ranks of [begin, end), none of which may be in the set.
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

// The names of a process set's ranks in messages: their numbers in the job, not their numbers in the set.
class RankNames {
 public:
  RankNames() = default;  // for the global set, in which both numbers are equal
  // `ranks`: the numbers in the job, by rank within the set.
  RankNames(uint32_t process_set, std::vector<int> ranks) : process_set_(process_set), ranks_(std::move(ranks)) {}

  // Returns a number that is not a rank of the set as it is: it may come from a peer.
  int Of(int rank) const {
    return rank >= 0 && rank < static_cast<int>(ranks_.size()) ? ranks_[static_cast<size_t>(rank)] : rank;
  }
  std::string Text(int rank) const { return "rank " + std::to_string(Of(rank)); }
  std::string Text(const std::vector<int32_t>& ranks) const;
  // " of process set 2"; empty for the global one.
  std::string OfSet() const { return process_set_ == 0 ? "" : " of process set " + std::to_string(process_set_); }

 private:
  uint32_t process_set_ = 0;
  std::vector<int> ranks_;
};

}  // namespace horocache::control
