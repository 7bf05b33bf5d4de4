#include "observe/operation_log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <string>
#include <thread>

namespace horocache::observe {
namespace {

OperationTrace Trace(std::string_view name) {
  OperationTrace trace;
  trace.name = name;
  return trace;
}

// The names of the records since the last call, and how many were lost.
std::string Take(OperationLog* log) {
  uint64_t lost = 0;
  std::string text;
  for (const OperationRecord& record : log->Take(&lost)) text += record.name + " ";
  return text + std::to_string(lost);
}

TEST(OperationLog, ARecordHasAllOfATrace) {
  OperationLog log;
  log.Start(4);
  {
    const std::string name = std::string("na\0me\xff", 6), error = "why";
    OperationTrace trace;
    trace.name = name;
    trace.op = "allreduce";
    trace.reduce_op = "sum";
    trace.dtype = "float16";
    trace.backend = "shm";
    trace.algorithm = "oneshot";
    trace.chosen_by = "table";
    trace.layers = "compression=fp16";
    trace.error = error;
    trace.process_set = 3;
    trace.tensors = 2;
    trace.bytes = int64_t{1} << 40;
    trace.sequence = ~uint64_t{0};
    trace.fused = 5;
    trace.peer = 6;
    trace.submitted_ns = 7;
    trace.agreed_ns = 8;
    trace.started_ns = 9;
    trace.ended_ns = 10;
    log.Add(trace);
  }
  uint64_t lost = 1;
  const auto records = log.Take(&lost);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(lost, 0u);
  const OperationRecord& record = records[0];
  EXPECT_EQ(record.name, std::string("na\0me\xff", 6)) << "the trace's texts have died";
  EXPECT_EQ(record.op + record.reduce_op + record.dtype, "allreducesumfloat16");
  EXPECT_EQ(record.backend + record.algorithm + record.chosen_by, "shmoneshottable");
  EXPECT_EQ(record.layers + record.error, "compression=fp16why");
  EXPECT_EQ(record.process_set, 3u);
  EXPECT_EQ(record.tensors, 2);
  EXPECT_EQ(record.bytes, int64_t{1} << 40);
  EXPECT_EQ(record.sequence, ~uint64_t{0});
  EXPECT_EQ(record.fused, 5u);
  EXPECT_EQ(record.peer, 6);
  EXPECT_EQ(record.submitted_ns * 1000 + record.agreed_ns * 100 + record.started_ns * 10 + record.ended_ns, 7900);
}

TEST(OperationLog, IsOffUntilItIsStarted) {
  OperationLog log;
  EXPECT_FALSE(log.on());
  log.Add(Trace("a"));
  EXPECT_EQ(Take(&log), "0");
  log.Start(1);
  EXPECT_TRUE(log.on());
  log.Add(Trace("b"));
  EXPECT_EQ(Take(&log), "b 0");
  EXPECT_EQ(Take(&log), "0");
}

TEST(OperationLog, ALongListLosesItsOldest) {
  OperationLog log;
  log.Start(2);
  for (const char* name : {"a", "b", "c", "d", "e"}) log.Add(Trace(name));
  EXPECT_EQ(Take(&log), "d e 3");
  EXPECT_EQ(Take(&log), "0") << "the count begins anew";
}

TEST(OperationLog, AnotherCapacityHoldsAtOnce) {
  OperationLog log;
  log.Start(std::numeric_limits<size_t>::max());
  for (const char* name : {"a", "b", "c", "d"}) log.Add(Trace(name));
  log.Start(2);
  log.Add(Trace("e"));
  EXPECT_EQ(Take(&log), "d e 3");
  log.Add(Trace("f"));
  log.Start(5);
  for (const char* name : {"g", "h"}) log.Add(Trace(name));
  EXPECT_EQ(Take(&log), "f g h 0");
}

TEST(OperationLog, StopForgetsTheRecords) {
  OperationLog log;
  log.Start(1);
  log.Add(Trace("a"));
  log.Add(Trace("b"));
  log.Stop();
  log.Add(Trace("c"));
  EXPECT_EQ(Take(&log), "0");
  log.Start(1);
  EXPECT_EQ(Take(&log), "0");
}

// One thread adds, as the driving thread does; others take, start and stop. Nothing is both taken and lost.
TEST(OperationLog, AnyThreadMayTakeStartAndStop) {
  OperationLog log;
  log.Start(100);
  constexpr uint64_t kRecords = 20'000;
  std::atomic<bool> done{false};
  uint64_t seen = 0, lost_in_all = 0;
  const auto take = [&] {
    uint64_t lost = 0;
    seen += log.Take(&lost).size();
    lost_in_all += lost;
  };
  std::thread taker([&] {
    while (!done) take();
  });
  std::thread starter([&] {
    while (!done) log.Start(50);
  });
  for (uint64_t i = 0; i < kRecords; ++i) log.Add(Trace("a"));
  done = true;
  taker.join();
  starter.join();
  take();
  EXPECT_EQ(seen + lost_in_all, kRecords);
}

}  // namespace
}  // namespace horocache::observe
