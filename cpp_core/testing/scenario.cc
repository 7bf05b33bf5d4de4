#include "testing/scenario.h"

#include <algorithm>

namespace horocache::testing {

namespace {

Status Bad(const std::string& what) { return {StatusCode::kInvalidArgument, "bad scenario: " + what}; }

Status CheckSets(const Scenario& scenario) {
  for (size_t set = 0; set < scenario.sets.size(); ++set) {
    const auto& members = scenario.sets[set];
    const std::string who = "process set " + std::to_string(set);
    if (members.empty()) return Bad(who + " has no members");
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i] < 0 || members[i] >= scenario.ranks) {
        return Bad(who + " has member " + std::to_string(members[i]) + " of " + std::to_string(scenario.ranks) +
                   " ranks");
      }
      if (i > 0 && members[i] <= members[i - 1]) return Bad("the members of " + who + " do not ascend");
    }
  }
  return Status::Ok();
}

Status CheckProgram(const Scenario& scenario, int rank) {
  for (const Instruction& instruction : scenario.programs[static_cast<size_t>(rank)]) {
    if (instruction.act != Act::kSubmit && instruction.act != Act::kLeave && instruction.act != Act::kConfigure)
      continue;
    const auto set = static_cast<size_t>(instruction.set);
    if (instruction.set < 0 || set >= scenario.sets.size() ||
        !std::binary_search(scenario.sets[set].begin(), scenario.sets[set].end(), rank)) {
      return Bad("rank " + std::to_string(rank) + " uses process set " + std::to_string(instruction.set) +
                 ", of which it is not a member");
    }
    if (instruction.act != Act::kConfigure) continue;
    if (scenario.sets[set].front() != rank)
      return Bad("rank " + std::to_string(rank) + " is not the first of process set " + std::to_string(set));
    HC_RETURN_IF_ERROR(control::ParseSettings(instruction.settings).status());
  }
  return Status::Ok();
}

}  // namespace

Status CheckScenario(const Scenario& scenario) {
  if (scenario.ranks < 1) return Bad("it has " + std::to_string(scenario.ranks) + " ranks");
  if (scenario.programs.size() > static_cast<size_t>(scenario.ranks)) return Bad("there are more programs than ranks");
  HC_RETURN_IF_ERROR(CheckSets(scenario));
  for (int rank = 0; rank < static_cast<int>(scenario.programs.size()); ++rank) {
    HC_RETURN_IF_ERROR(CheckProgram(scenario, rank));
  }
  for (const Fault& fault : scenario.faults) {
    if (fault.rank < 0 || fault.rank >= scenario.ranks) {
      return Bad("a fault hits rank " + std::to_string(fault.rank) + " of " + std::to_string(scenario.ranks));
    }
  }
  return Status::Ok();
}

}  // namespace horocache::testing
