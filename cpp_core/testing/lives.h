// Shared by the checkers: the life of each submitted operation, and the text of a violation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "testing/history.h"

namespace horocache::testing {

inline constexpr uint64_t kNoStep = std::numeric_limits<uint64_t>::max();
inline constexpr size_t kNoPlan = ~size_t{0};

Status Violation(const History& history, size_t set, const MemberHistory& member, uint64_t step,
                 const std::string& what);
std::string Quoted(const std::string& name);

// The life of one submission, for the checkers.
struct Life {
  const wire::Signature* signature = nullptr;
  const SubmitRecord* record = nullptr;
  uint64_t submitted = 0, ended = kNoStep;
  int64_t submitted_ns = 0;
  size_t plan = kNoPlan;  // index of the plan with its first piece
  const EndRecord* end = nullptr;

  bool OutstandingAt(uint64_t step, size_t plan_index) const {
    return submitted < step && ended >= step && plan >= plan_index;
  }
};

struct Lives {
  std::unordered_map<control::OpId, Life> by_op;
  std::unordered_map<std::string, std::vector<control::OpId>> by_name;
  std::vector<control::OpId> joins;
};

Lives LivesOf(const MemberHistory& member);
std::vector<Lives> LivesOf(const SetHistory& set);

}  // namespace horocache::testing
