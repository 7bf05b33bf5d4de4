// A set of ranks of a process set, and how ranks read in messages.
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

// How the ranks of a process set are called in messages: by their numbers in the job, whatever they are in the set.
class RankNames {
 public:
  RankNames() = default;  // of the global set, where both are the same
  // `ranks` of the job, by rank within the set.
  RankNames(uint32_t process_set, std::vector<int> ranks) : process_set_(process_set), ranks_(std::move(ranks)) {}

  // What is no rank of the set stays as it is: it may come from a peer.
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
