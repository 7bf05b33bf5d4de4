// What a runtime counts, for hc.metrics(), tests and benchmarks. Counters do not depend on the machine's noise; times
// do.
//
// Shared: written by the holder of the role (relaxed stores), read by anybody.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/thread.h"
#include "runtime/busy_time.h"
#include "wire/message.h"

namespace horocache::runtime {

// A number with one writer at a time.
class Counter {
 public:
  void Add(uint64_t amount) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  void Set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  uint64_t Get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// A number that any thread adds to.
class SharedCounter {
 public:
  void Add(uint64_t amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  uint64_t Get() const { return value_.load(std::memory_order_relaxed); }
  std::atomic<uint64_t>* number() { return &value_; }  // for layers that know no counters

 private:
  std::atomic<uint64_t> value_{0};
};

struct Metrics {
  explicit Metrics(int ranks) : wait_ns(static_cast<size_t>(ranks)) {}

  // Of the control plane; copied from the controller after each step.
  Counter rounds, slow_rounds, flushes, hits, misses, changed, evictions, growths, control_bytes, frames;
  // Of the data plane.
  Counter operations, payload_bytes, bytes_copied, bytes_folded, program_operations;
  Counter bytes_placed;  // of gradients that a binding copied into memory that is shared
  // Of messages that were sent and received without an error.
  Counter messages_sent, messages_received, message_bytes_sent, message_bytes_received;
  // System calls, of any thread of this rank.
  SharedCounter wakes;                 // made to wake somebody
  SharedCounter yields;                // in which a waiting thread gave up its core in turns
  SharedCounter waits_asleep;          // of a thread that waits for an operation, which another one drives
  Counter wakeups;                     // times a thread that drives this rank was woken from sleep
  Counter sleeps;                      // times it went to sleep
  Counter role_taken;                  // times a waiting thread drove the rank itself
  Counter fused_operations;            // plans executed: buffers handed to the data plane
  Counter inline_operations;           // that rode on the round that agreed on them, and needed no plan of a lane
  std::array<Counter, 40> fused_size;  // histogram: [i] counts plans of 2^(i-1) < bytes <= 2^i
  std::array<Counter, wire::kNumOps> op_count;
  std::array<Counter, wire::kNumOps> op_ns;  // from submission to completion
  std::vector<Counter> wait_ns;              // slept while a collective waited for this rank

  // An operation has completed, `ns` after its submission.
  void CountDone(wire::Op op, int64_t ns) {
    op_count[static_cast<size_t>(op)].Add(1);
    op_ns[static_cast<size_t>(op)].Add(static_cast<uint64_t>(ns));
  }
  // What hc.overlap() is made of.
  BusyTime lane_busy;
  SharedCounter blocked_ns;       // in waits for operations that were not done; of several threads, added up
  SharedCounter steps;            // of optimizers, as the bindings count them
  ThreadCpuTime coordinator_cpu;  // of the coordinator thread

  // Name to value, flat; histogram and per-rank entries as name.index, only those that are not zero.
  std::map<std::string, uint64_t> Snapshot() const;
};

}  // namespace horocache::runtime
