// A simulated job: the ranks' programs, the faults that hit them, and the settings of their controllers.
//
// Plain values. Equal scenarios give equal histories, so the scenario's seed reproduces a failure.
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
  kConfigure,  // changes the settings of the process set `set`, of which the rank is the first member
  kWait,       // waits for the rank's submission number `index`
  kWaitAll,    // waits for all its submissions, in order, like a loop over handles
  kCompute,    // sleeps for `duration_ns`
  kLeave,      // leaves the process set `set`
  kAbort,      // aborts every process set of which the rank is a member
};

struct Instruction {
  Act act = Act::kWaitAll;
  int set = 0;                // index in Scenario::sets
  wire::Signature signature;  // of kSubmit
  int index = 0;              // of kWait
  int64_t duration_ns = 0;    // of kCompute
  std::string settings = {};  // of kConfigure, see control/settings.h
};

// A fault of `rank`, injected at step number `at_step` of the simulation.
struct Fault {
  enum class Kind : uint8_t { kKill, kPause };
  Kind kind = Kind::kKill;
  int rank = 0;
  uint64_t at_step = 0;
  int64_t duration_ns = 0;  // length of a pause; for a kill, the time until the last survivor knows, at most
};

// Injected bugs, to test that the checkers find them.
struct Sabotage {
  // Changes the words that `rank` (of the whole job) publishes to process set `set`, or the words that it reads.
  std::function<void(int set, int rank, uint64_t round, std::vector<uint64_t>* words)> on_publish, on_result;
  // Changes the inline payload of `from` as `rank` reads it.
  std::function<void(int set, int rank, int from, std::vector<uint64_t>* payload)> on_payload;
  // Returns false to drop a ring.
  std::function<bool(int set, int from, int to)> on_ring;
  // Changes one rank's settings.
  std::function<void(int set, int rank, control::ControllerConfig*)> on_config;
  // True: a rank runs the plans of all its process sets in one lane, in the order in which it learns of them.
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
  // Common settings; the simulation sets rank, size, process_set, epoch and selector for each controller.
  control::ControllerConfig controller = DefaultController();
  int64_t max_delay_ns = 20'000;
  bool delay_words = false;           // see Note [Two kinds of delay] in testing/inproc_channel.h
  int64_t max_duration_ns = 200'000;  // of one executed plan
  bool leave_at_end = true;           // true if every program ends with kWaitAll and a kLeave for every set
  uint64_t max_steps = 2'000'000;     // a job that takes more steps does not terminate, which is a violation
  Sabotage sabotage;

  // Limits short enough that every simulated run ends, in virtual time, within a second.
  static control::ControllerConfig DefaultController() {
    control::ControllerConfig config;
    config.stall_warn_ns = 50'000'000;
    config.stall_fail_ns = 400'000'000;
    return config;
  }
};

// Returns kInvalidArgument if members, programs or faults name ranks or process sets that do not exist, or if another
// rank than the first of a process set changes its settings.
Status CheckScenario(const Scenario& scenario);

}  // namespace horocache::testing
