#include "runtime/diagnostics/fault.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <new>

#include "base/text.h"

namespace horocache::runtime {
namespace {

constexpr std::array<std::string_view, 5> kPlaces = {"submit", "start", "data", "inline", "done"};
constexpr std::array<std::string_view, 6> kActions = {"kill", "stop", "exit", "error", "drop", "memory"};

Status Malformed(std::string_view text) {
  return {StatusCode::kInvalidArgument,
          "knob fault (HOROCACHE_FAULT) has '" + Printable(text) +
              "'; allowed: place[:rank[:count]]=action with place one of submit, start, data, inline, done and action "
              "one of kill, stop, exit, error, memory (not at submit), and drop at data or inline"};
}

bool IsKnown(std::string_view place, std::string_view action) {
  if (action == "drop") return place == "data" || place == "inline";
  if (action == "memory" && place == "submit") return false;
  return std::ranges::find(kPlaces, place) != kPlaces.end() && std::ranges::find(kActions, action) != kActions.end();
}

}  // namespace

StatusOr<FaultInjector> FaultInjector::Parse(std::string_view text, int rank) {
  FaultInjector injector;
  if (text.empty()) return injector;
  for (const std::string& entry : Split(text, ';')) {
    const std::vector<std::string> sides = Split(entry, '=');
    if (sides.size() != 2) return Malformed(entry);
    const std::vector<std::string> where = Split(sides[0], ':');
    int only_rank = rank;
    Fault fault;
    fault.place = where[0];
    fault.action = sides[1];
    const bool numbers = (where.size() < 2 || ParseNumber(where[1], &only_rank)) &&
                         (where.size() < 3 || ParseNumber(where[2], &fault.count));
    if (!IsKnown(fault.place, fault.action) || !numbers || where.size() > 3) return Malformed(entry);
    if (only_rank == rank) injector.faults_.push_back(std::move(fault));
  }
  return injector;
}

Status FaultInjector::Trigger(std::string_view place) const {
  for (const Fault& fault : faults_) {
    if (fault.place != place || fault.seen->fetch_add(1) + 1 != fault.count) continue;
    if (fault.action == "kill") raise(SIGKILL);
    if (fault.action == "exit") _exit(3);
    if (fault.action == "memory") throw std::bad_alloc();
    if (fault.action == "stop") {
      raise(SIGSTOP);  // stops all threads until SIGCONT
      continue;
    }
    return {fault.action == "drop" ? kDrop : StatusCode::kAborted, "injected at " + std::string(place)};
  }
  return Status::Ok();
}

}  // namespace horocache::runtime
