#include "observe/flight_recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "observe/flight_text.h"

namespace horocache::observe {
namespace {

using Kind = FlightRecorder::Kind;

TEST(FlightRecorder, KeepsEvents) {
  FlightRecorder recorder;
  recorder.Add({.at_ns = 5,
                .kind = Kind::kFailed,
                .op = wire::Op::kAlltoall,
                .process_set = 4'000'000'000u,
                .tensors = 7,
                .handle = (int64_t{1} << 40) + 1,
                .bytes = int64_t{1} << 50,
                .sequence = uint64_t{1} << 60,
                .text = "x"});
  recorder.Note("rank 1 is gone", 6);
  const FlightRecorder::Snapshot last = recorder.Take();
  ASSERT_EQ(last.events.size(), 2u);
  const FlightRecorder::Event& event = last.events[0];
  EXPECT_EQ(event.number, 1u);
  EXPECT_EQ(event.at_ns, 5);
  EXPECT_EQ(event.kind, Kind::kFailed);
  EXPECT_EQ(event.op, wire::Op::kAlltoall);
  EXPECT_EQ(event.process_set, 4'000'000'000u);
  EXPECT_EQ(event.tensors, 7u);
  EXPECT_EQ(event.handle, (int64_t{1} << 40) + 1);
  EXPECT_EQ(event.bytes, int64_t{1} << 50);
  EXPECT_EQ(event.sequence, uint64_t{1} << 60);
  EXPECT_EQ(event.text, "x");
  EXPECT_EQ(last.events[1].kind, Kind::kNote);
  EXPECT_EQ(last.events[1].text, "rank 1 is gone");
}

TEST(FlightRecorder, KeepsTheLastEventsInOrder) {
  FlightRecorder recorder;
  constexpr int64_t kAll = 10'000, kKept = FlightRecorder::kCapacity;
  for (int64_t i = 1; i <= kAll; ++i) recorder.Note(std::to_string(i), i);
  const FlightRecorder::Snapshot last = recorder.Take();
  ASSERT_EQ(last.events.size(), static_cast<size_t>(kKept));
  for (int64_t i = 0; i < kKept; ++i) {
    EXPECT_EQ(last.events[static_cast<size_t>(i)].at_ns, kAll - kKept + 1 + i);
    EXPECT_EQ(last.events[static_cast<size_t>(i)].text, std::to_string(kAll - kKept + 1 + i));
  }
}

TEST(FlightRecorder, ALongNameLosesItsMiddle) {
  FlightRecorder recorder;
  recorder.Note(std::string(72, 'a'), 1);
  std::string longer(60, 'a');
  longer.append(60, 'b');
  recorder.Note(longer, 1);
  const FlightRecorder::Snapshot last = recorder.Take();
  EXPECT_EQ(last.events[0].text, std::string(72, 'a'));
  std::string shortened(35, 'a');
  EXPECT_EQ(last.events[1].text, shortened.append("..").append(35, 'b'));
}

// A reader gets matching times and texts of the events while other threads write.
TEST(FlightRecorder, ManyThreadsMayWriteWhileOneReads) {
  FlightRecorder recorder;
  std::atomic<int> running{3};
  std::vector<std::jthread> writers;
  for (int writer = 0; writer < 3; ++writer) {
    writers.emplace_back([&, writer] {
      for (int64_t i = 0; i < 20'000; ++i) recorder.Note(std::to_string(writer + 3 * i), writer + 3 * i);
      --running;
    });
  }
  size_t seen = 0;
  while (running > 0 || seen == 0) {
    const FlightRecorder::Snapshot last = recorder.Take();
    uint64_t before = 0;
    for (const FlightRecorder::Event& event : last.events) {
      EXPECT_EQ(event.text, std::to_string(event.at_ns));
      EXPECT_GT(event.number, before);
      before = event.number;
    }
    seen = last.events.size();
  }
}

TEST(FlightText, IsOneObjectWithAllFields) {
  FlightRecorder recorder;
  recorder.Add({.at_ns = 3,
                .kind = Kind::kStarted,
                .op = wire::Op::kAllreduce,
                .tensors = 2,
                .handle = 9,
                .bytes = 8,
                .sequence = 6,
                .text = "a\"b"});
  recorder.Note("lost", 4);
  FlightReport report;
  report.rank = {.version = "1", .host = "h", .rank = 1, .size = 2, .clock_offset_ns = -7};
  report.pid = 42;
  report.job = "j";
  report.why = "PeerLost";
  report.stacks = "Current";
  report.now_ns = 10;
  report.sets = {{3, {0, 1}}, {5, {1}}};
  report.pending.push_back({.name = "x", .op = wire::Op::kBarrier, .process_set = 3, .handle = 5, .submitted_ns = 2});
  report.last = recorder.Take();
  EXPECT_EQ(FlightText(report),
            R"({"horocache":"1","job":"j","rank":1,"size":2,"host":"h","pid":42,"why":"PeerLost","now_ns":10,)"
            R"("clock_offset_ns":-7,"sets":[)"
            "\n"
            R"({"number":3,"ranks":[0, 1]},)"
            "\n"
            R"({"number":5,"ranks":[1]}],"pending":[)"
            "\n"
            R"({"since_ns":2,"name":"x","op":"barrier","process_set":3,"handle":5,"tensors":0,"bytes":0}],"events":[)"
            "\n"
            R"({"number":1,"at_ns":3,"what":"started","name":"a\"b","op":"allreduce","process_set":0,"handle":9,)"
            R"("tensors":2,"bytes":8,"sequence":6},)"
            "\n"
            R"({"number":2,"at_ns":4,"what":"note","note":"lost"}],"stacks":"Current"})"
            "\n");
}

}  // namespace
}  // namespace horocache::observe
