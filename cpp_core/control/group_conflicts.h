// Finds a tensor that is pending in different company on two ranks: under different groups, or alone on one and in a
// group on another. Such requests can never be ready everywhere, so they fail at once.
//
// A rank that had not submitted all of its part yet when the others' failed gets the same failure when it comes.
//
// Role: coordinator (rank 0). Pure.
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

  // The requests that are pending, by name; kept by the caller's Add and Remove.
  void Add(const wire::Signature& signature);
  void Remove(const wire::Signature& signature);

  // Names of pending requests that share a tensor with this one under another name; `*key` is one such tensor.
  std::vector<std::string> Find(const wire::Signature& signature, std::string* key) const;

  bool SomebodyLate() const { return !late_.empty(); }
  // A request that failed because of a conflict, and the ranks that had submitted it.
  struct Failed {
    wire::Signature signature;
    RankSet ranks;
  };
  // Ranks that had not submitted some of the tensors, and have not joined, are still to be told.
  void Remember(const std::vector<Failed>& failed, const std::string& message, const RankSet& joined);
  // Whether `rank` submits something that failed before it came; then gives the message.
  bool TakeLate(int rank, const wire::Signature& signature, std::string* message);

 private:
  struct Late {
    std::string message;
    StringMap<size_t> keys;               // of all tensors that failed
    std::vector<std::vector<bool>> owed;  // of each rank: which of them it has not submitted yet
    std::vector<size_t> num_owed;         // of each rank
  };
  static bool Take(Late* late, size_t rank, const wire::Signature& signature);
  static constexpr size_t kMostRemembered = 256;

  const int size_;
  StringMap<std::string> name_of_key_;
  std::deque<Late> late_;
};

}  // namespace horocache::control
