// The counters of a runtime, for hc.metrics(), tests and benchmarks. Counters do not depend on the machine's noise;
// times do.
//
// Shared: written by the driving thread with relaxed stores, read by any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread.h"
#include "moe/exchange_counters.h"
#include "runtime/diagnostics/busy_time.h"
#include "wire/message.h"

namespace horocache::runtime {

// A counter with one writer at a time.
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

// A counter that any thread may add to.
class SharedCounter {
 public:
  void Add(uint64_t amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  uint64_t Get() const { return value_.load(std::memory_order_relaxed); }
  std::atomic<uint64_t>* number() { return &value_; }  // for layers that do not know this class

 private:
  std::atomic<uint64_t> value_{0};
};

struct Metrics {
  explicit Metrics(int ranks) : wait_ns(static_cast<size_t>(ranks)) {}

  // Control plane; copied from the controllers after each step.
  Counter rounds, slow_rounds, flushes, hits, misses, changed, evictions, growths, control_bytes, frames;
  // Data plane.
  Counter operations, payload_bytes, bytes_copied, bytes_folded, program_operations;
  Counter small_lane_operations;  // fused operations that did not wait in the main lane of their backend
  Counter bytes_into_views;       // bytes of gradients that a binding copied into bucket views
  // Messages that completed without an error.
  Counter messages_sent, messages_received, message_bytes_sent, message_bytes_received;
  // System calls of any thread of this rank.
  SharedCounter wakes;                 // calls that wake another thread or rank
  SharedCounter yields;                // sched_yield calls of threads that wait
  SharedCounter waits_asleep;          // futex waits of threads whose operation another thread drives
  Counter wakeups;                     // returns of a driving thread from sleep
  Counter sleeps;                      // times a driving thread went to sleep
  Counter held_back;                   // operations that waited before their proposal, see HeldBack
  Counter lock_taken;                  // times a waiting thread took the progress lock
  Counter fused_operations;            // plans that lanes executed: buffers handed to the data plane
  Counter inline_operations;           // small allreduces completed inline, with the data of their round
  std::array<Counter, 40> fused_size;  // histogram: [i] counts plans of 2^(i-1) < bytes <= 2^i
  std::array<Counter, wire::kNumOps> op_count;
  std::array<Counter, wire::kNumOps> op_ns;  // nanoseconds from submission to completion
  std::vector<Counter> wait_ns;  // by rank of the job: ns that this rank slept while it waited for that rank

  // Of the one-sided exchanges. Windows may outlive the runtime.
  std::shared_ptr<moe::ExchangeCounters> exchanges = std::make_shared<moe::ExchangeCounters>();

  // Counts an operation that has completed `ns` after its submission.
  void CountDone(wire::Op op, int64_t ns) {
    op_count[static_cast<size_t>(op)].Add(1);
    op_ns[static_cast<size_t>(op)].Add(static_cast<uint64_t>(ns));
  }
  // The inputs of hc.overlap().
  BusyTime lane_busy;
  SharedCounter blocked_ns;    // nanoseconds in waits for unfinished operations, summed over threads
  SharedCounter steps;         // optimizer steps, counted by the bindings
  ThreadCpuTime progress_cpu;  // of the progress thread

  // All counters by name. Histogram and per-rank entries are named name.index; entries that are zero are left out.
  std::map<std::string, uint64_t> Snapshot() const;
};

}  // namespace horocache::runtime
