// The process sets that a job has besides the global one, as all its ranks know them: which ranks, under which numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace horocache::runtime {

// Numbered from 1, as they were given to init(); number 0 is the global set.
class ProcessSets {
 public:
  // kInvalidArgument, naming the set, unless each has distinct ranks of a job of `size`, ascending, and differs from
  // those before it and from the global one.
  static StatusOr<ProcessSets> Make(int size, std::vector<std::vector<int>> sets);

  int size() const { return static_cast<int>(ranks_.size()); }  // with the global one
  const std::vector<int>& ranks(uint32_t number) const { return ranks_[number]; }
  // The rank's number within the set; -1 if it is not a member.
  int RankIn(uint32_t number, int rank) const;
  // "process set 2 (ranks 0, 3)"
  std::string Describe(uint32_t number) const;
  // For Handshake::agree: a line for each set but the global one. Of sets as they were given, good or not.
  static std::string AgreeText(const std::vector<std::vector<int>>& sets);

 private:
  std::vector<std::vector<int>> ranks_;
};

}  // namespace horocache::runtime
