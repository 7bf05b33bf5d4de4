// What a simulated job does: the ranks' programs, the faults that hit them, and the settings of their controllers.
//
// Plain values: equal scenarios give equal histories, so a failure is reproduced by its scenario's seed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "control/controller.h"
#include "wire/message.h"

namespace horocache::testing {

enum class Act : uint8_t {
  kSubmit,
  kWait,     // for the rank's submission number `index`
  kWaitAll,  // for each of its submissions, in order, as a loop over handles would
  kCompute,  // nothing for `duration_ns`
  kLeave,    // the process set `set`
  kAbort,    // every process set that it is a member of
};

struct Instruction {
  Act act = Act::kWaitAll;
  int set = 0;                // index in Scenario::sets
  wire::Signature signature;  // of kSubmit
  int index = 0;              // of kWait
  int64_t duration_ns = 0;    // of kCompute
};

// What happens to `rank` when the simulation makes its `at_step`-th step.
struct Fault {
  enum class Kind : uint8_t { kKill, kPause };
  Kind kind = Kind::kKill;
  int rank = 0;
  uint64_t at_step = 0;
  int64_t duration_ns = 0;  // of a pause; of a kill: the survivors know after at most this
};

// Seeded bugs: they exist to prove that the checkers see them.
struct Sabotage {
  // Changes what `rank` (of the whole job) publishes to, or reads from, process set `set`.
  std::function<void(int set, int rank, uint64_t round, std::vector<uint64_t>* words)> on_publish, on_result;
  // Changes what `rank` reads of what travelled with the words of `from`.
  std::function<void(int set, int rank, int from, std::vector<uint64_t>* payload)> on_payload;
  // Returns false to lose a ring.
  std::function<bool(int set, int from, int to)> on_ring;
  // Changes one rank's settings.
  std::function<void(int set, int rank, control::ControllerConfig*)> on_config;
  // A rank runs all its plans one after the other in the order in which it learnt of them, whatever their process set.
  bool one_lane_per_rank = false;
};

struct Scenario {
  uint64_t seed = 0;
  int ranks = 2;
  // Members (ranks of the job, ascending) of each process set.
  std::vector<std::vector<int>> sets = {{0, 1}};
  std::vector<std::vector<Instruction>> programs;  // one per rank; missing ones are empty
  std::vector<Fault> faults;

  std::string strategy = "bits";
  int radix = 4;
  int ranks_per_host = 0;  // 0: all on one host
  // rank, size, process_set, epoch and selector are filled in for each controller.
  control::ControllerConfig controller = DefaultController();
  int64_t max_delay_ns = 20'000;
  bool delay_words = false;           // see Note [Two kinds of delay] in net/inproc_channel.h
  int64_t max_duration_ns = 200'000;  // of one executed plan
  bool leave_at_end = true;           // every program ends with waiting for everything and leaving every set
  uint64_t max_steps = 2'000'000;     // more is a violation: the job does not come to rest
  Sabotage sabotage;

  // Limits short enough that every simulated run ends, in virtual time, within a second.
  static control::ControllerConfig DefaultController() {
    control::ControllerConfig config;
    config.stall_warn_ns = 50'000'000;
    config.stall_fail_ns = 400'000'000;
    return config;
  }
};

// kInvalidArgument if members, programs or faults name ranks or process sets that there are not.
Status CheckScenario(const Scenario& scenario);

}  // namespace horocache::testing
