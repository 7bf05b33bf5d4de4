// Injects faults by name and place, so that tests need no sleeps.
//
// The knob's text is a list of `place[:rank[:count]]=action`, separated by semicolons. Without a rank, the fault
// applies to every rank. It fires at the `count`-th visit of the place (from 1, the default).
//
// * Places: submit (a request is submitted), start (a collective is about to start), data (it has started and is not
//   finished: visited once by an inline allreduce, any number of times by a collective that waits for other ranks),
//   inline (an inline allreduce is about to be folded), done (it has finished).
// * Actions: kill (SIGKILL), stop (SIGSTOP; SIGCONT continues), exit (status 3, without shutdown), error (the rank
//   aborts), memory (std::bad_alloc), drop (only at `data` and `inline`: the collective is given up half way, as when a
//   library fails).
//
// Shared: any thread reaches `submit`; the driving thread reaches the other places.
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
  // Returns kInvalidArgument, with the allowed syntax, if `text` cannot be parsed.
  static StatusOr<FaultInjector> Parse(std::string_view text, int rank);

  static constexpr StatusCode kDrop = StatusCode::kInternal;
  // Triggers the fault that is due at this place. Returns kAborted for `error` and kDrop for `drop`. Costs one branch
  // without faults.
  Status At(std::string_view place) const { return faults_.empty() ? Status::Ok() : Trigger(place); }

 private:
  struct Fault {
    std::string place;
    std::string action;
    int count = 1;
    std::unique_ptr<std::atomic<int>> seen = std::make_unique<std::atomic<int>>(0);
  };

  Status Trigger(std::string_view place) const;

  std::vector<Fault> faults_;  // of this rank only
};

}  // namespace horocache::runtime
