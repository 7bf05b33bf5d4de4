// Faults that tests inject by name and place, so that none of them sleeps and hopes.
//
// Text: `place[:rank[:count]]=action`, separated by semicolons; without a rank on every rank, `count` is the
// how-manieth time (from 1). Places: submit (a request is submitted), start (a collective is about to start), data (it
// has started and is not finished), done (it has finished). Actions: kill (SIGKILL), stop (SIGSTOP; SIGCONT continues),
// exit (status 3, without shutdown), error (the rank aborts), memory (there is none: std::bad_alloc), drop (at `data`:
// the collective is given up half way, as when a library fails).
//
// Shared: submit is any thread's place, the others the role's.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace horocache::runtime {

class FaultInjector {
 public:
  // kInvalidArgument for what does not parse, with what is allowed.
  static StatusOr<FaultInjector> Parse(std::string_view text, int rank);

  static constexpr StatusCode kDrop = StatusCode::kInternal;
  // Does what is due at this place; kAborted for `error`, kDrop for `drop`. Nothing but a branch when there is no
  // fault.
  Status At(std::string_view place) const { return faults_.empty() ? Status::Ok() : Trigger(place); }

 private:
  struct Fault {
    std::string place;
    std::string action;
    int count = 1;
    std::unique_ptr<std::atomic<int>> seen = std::make_unique<std::atomic<int>>(0);
  };

  Status Trigger(std::string_view place) const;

  std::vector<Fault> faults_;  // of this rank
};

}  // namespace horocache::runtime
