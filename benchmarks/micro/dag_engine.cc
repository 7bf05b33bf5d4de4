// Times empty operations of the dependency engine on one core, beside the cost of the design that it takes after.
// Prints one line of JSON for each way: nanoseconds per operation, and the engine's counters.
//
//   micro_dag_engine [operations=1000000] [repetitions=7]
//
// The design's cost is a model: what the engine of MXNet 1.9 (src/engine/threaded_engine.{h,cc}) does for an operation,
// counted, times what each such thing takes here. All threads are bound to one core, so that no time is that of two.

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "dag/engine.h"

namespace {

using horocache::dag::Engine;
using horocache::dag::FailurePtr;
using horocache::dag::Handle;
using horocache::dag::Outcome;
using horocache::dag::Task;

constexpr int kChains = 16;  // variables; the operations of each follow each other
constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

double Seconds(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class Empty final : public Task {
 public:
  Outcome Run(Handle, const FailurePtr&) override { return {}; }
  void Ended(const FailurePtr&, bool) override {}
  std::string Name() const override { return "empty"; }
};

struct Way {
  const char* name;
  std::vector<int> threads;
  bool at_once;
};

void Check(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "micro_dag_engine: %s\n", what);
  std::exit(1);
}

// Pushes operations, each of which writes one variable and reads another.
void Measure(const Way& way, int operations, int repetitions) {
  Empty empty;  // outlives the engine, which may call Ended after a wait has returned
  Engine engine({.threads = way.threads});
  std::array<Handle, kChains> written;
  for (Handle& each : written) each = engine.AddVariable();
  const std::array<Handle, 1> read = {engine.AddVariable()};
  std::vector<double> ns;
  Engine::Counters before;
  for (int repetition = -1; repetition < repetitions; ++repetition) {
    if (repetition == 0) before = engine.counters();
    const double seconds = Seconds([&] {
      for (int i = 0; i < operations; ++i) {
        const std::array<Handle, 1> writes = {written[static_cast<size_t>(i % kChains)]};
        Check(engine.Push(&empty, read, writes, {.at_once = way.at_once}).ok(), "an operation was refused");
      }
      FailurePtr failure;
      Check(*engine.WaitAll(kNoDeadline, &failure) && failure == nullptr, "an operation failed");
    });
    if (repetition >= 0) ns.push_back(seconds / operations * 1e9);
  }
  const Engine::Counters after = engine.counters();
  Check(after.ended - before.ended == static_cast<uint64_t>(operations) * static_cast<uint64_t>(repetitions),
        "not every operation has ended");
  std::printf("{\"way\": \"%s\", \"ns\": [", way.name);
  for (size_t i = 0; i < ns.size(); ++i) std::printf("%s%.2f", i == 0 ? "" : ", ", ns[i]);
  std::printf("], \"allocations\": %llu, \"contended\": %llu, \"operations\": %d}\n",
              static_cast<unsigned long long>(after.allocations - before.allocations),
              static_cast<unsigned long long>(after.contended - before.contended), operations);
}

// The work of MXNet's engine for an operation that reads one variable and writes one.
struct Count {
  int blocks =
      3;          // of free lists, each with a mutex: the operator, its block, its place in the list of the written one
  int locks = 4;  // of each variable's mutex, when the operation is added and when it ends
  int functions = 2;  // std::function objects that are made: of the caller's function, and around it
  int atomics = 5;    // the number of pending operations, up and down, and that of missing variables, to 0
  int queues = 1;     // the worker's queue: locked and notified by the push, locked by the pop
};

void MeasureModel(int operations, int repetitions) {
  std::mutex mutex;
  std::condition_variable condition;
  std::vector<void*> free_list(1, nullptr);
  std::atomic<int> number{0};
  volatile int sink = 0;
  const auto each = [&](const std::function<void()>& run) {
    std::vector<double> ns;
    for (int i = 0; i < repetitions; ++i) ns.push_back(Seconds(run) / operations * 1e9);
    std::nth_element(ns.begin(), ns.begin() + static_cast<std::ptrdiff_t>(ns.size() / 2), ns.end());
    return ns[ns.size() / 2];
  };
  const double lock = each([&] {
    for (int i = 0; i < operations; ++i) {
      const std::lock_guard hold(mutex);
      sink = i;
    }
  });
  const double block = 2 * each([&] {  // taken and given back
                         for (int i = 0; i < operations; ++i) {
                           const std::lock_guard hold(mutex);
                           void* const top = free_list.back();
                           free_list.back() = top;
                         }
                       });
  const double notified = each([&] {
    for (int i = 0; i < operations; ++i) {
      {
        const std::lock_guard hold(mutex);
        sink = i;
      }
      condition.notify_one();
    }
  });
  const double function = each([&] {
    for (int i = 0; i < operations; ++i) {
      std::array<void*, 4> captured = {&mutex, &condition, &number, nullptr};  // too large for the small buffer
      const std::function<void()> made = [captured, &sink] { sink = captured[3] == nullptr; };
      made();
    }
  });
  const double atomic = each([&] {
    for (int i = 0; i < operations; ++i) number.fetch_add(1);
  });
  const Count count;
  const double total = count.blocks * block + count.locks * lock + count.functions * function + count.atomics * atomic +
                       count.queues * (notified + lock);
  std::printf(
      "{\"way\": \"MXNet's design, by the model\", \"ns\": [%.2f], \"lock_ns\": %.2f, \"block_ns\": %.2f, "
      "\"notify_ns\": "
      "%.2f, \"function_ns\": %.2f, \"atomic_ns\": %.2f, \"operations\": %d}\n",
      total, lock, block, notified, function, atomic, operations);
}

int Argument(char** arguments, int count, int number, int otherwise) {
  const int value = number < count ? std::atoi(arguments[number]) : otherwise;
  Check(value > 0, "arguments are numbers above 0");
  return value;
}

}  // namespace

int main(int count, char** arguments) {
  const int operations = Argument(arguments, count, 1, 1'000'000);
  const int repetitions = Argument(arguments, count, 2, 7);
  cpu_set_t allowed;
  Check(sched_getaffinity(0, sizeof(allowed), &allowed) == 0, "the cores are unknown");
  for (int core = 0, found = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed) && ++found > 1) CPU_CLR(core, &allowed);
  }
  Check(sched_setaffinity(0, sizeof(allowed), &allowed) == 0, "the threads cannot be bound to a core");
  for (const Way& way : {Way{"within the push", {1}, true}, Way{"by a thread", {1}, false}, Way{"naive", {}, false}}) {
    Measure(way, operations, repetitions);
  }
  MeasureModel(operations, repetitions);
  return 0;
}
