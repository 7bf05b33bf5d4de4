// Finds a tensor that two ranks have pending in different groups, or one rank by itself and another in a group. Such
// requests can never be ready on all ranks, so they fail at once.
//
// If a rank has not submitted all of its part when the requests of the other ranks fail, it gets the same failure when
// it submits the rest.
//
// Threads: the thread that holds rank 0's progress lock. Pure.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "control/rank_set.h"
#include "control/string_map.h"
#include "wire/message.h"

namespace horocache::control {

class GroupConflicts {
 public:
  explicit GroupConflicts(int size) : size_(size) {}

  // Add and Remove keep an index of the pending requests by all their names. The caller adds and removes each request.
  void Add(const wire::Signature& signature);
  void Remove(const wire::Signature& signature);

  // Returns the names of the pending requests that share a tensor with this one under another name; `*key` is one such
  // tensor.
  std::vector<std::string> Find(const wire::Signature& signature, std::string* key) const;

  bool AnyRankLate() const { return !late_.empty(); }
  // A request that failed because of a conflict, and the ranks that had submitted it.
  struct Failed {
    wire::Signature signature;
    RankSet ranks;
  };
  // Records the failure for the ranks that have not submitted some of the tensors and have not joined; TakeLate returns
  // it to them.
  void Remember(const std::vector<Failed>& failed, const std::string& message, const RankSet& joined);
  // True if `rank` submits a request that failed before the rank submitted it; then writes the failure's message.
  bool TakeLate(int rank, const wire::Signature& signature, std::string* message);

 private:
  // A conflict of which some ranks have yet to submit their part.
  struct Late {
    std::string message;
    StringMap<size_t> keys;               // index of each tensor that failed
    std::vector<std::vector<bool>> owed;  // by rank and index: true if the rank has not submitted the tensor yet
    std::vector<size_t> num_owed;         // by rank
  };
  static bool Take(Late* late, size_t rank, const wire::Signature& signature);
  // How many conflicts are remembered; the oldest is dropped first.
  static constexpr size_t kMostRemembered = 256;

  const int size_;
  StringMap<std::string> name_of_key_;
  std::deque<Late> late_;
};

}  // namespace horocache::control
