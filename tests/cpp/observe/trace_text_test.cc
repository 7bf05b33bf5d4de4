#include "observe/trace_text.h"

#include <gtest/gtest.h>

namespace horocache::observe {
namespace {

std::string Take(TraceText* text) {
  std::string events;
  text->Take(&events);
  return events;
}

TraceText Text() {
  TraceText text({.version = "1",
                  .host = "a",
                  .rank = 2,
                  .size = 3,
                  .clock_offset_ns = -5,
                  .clock_error_ns = 7,
                  .clock_measured_ns = 8,
                  .epoch_us = 9});
  EXPECT_NE(Take(&text).find(R"({"ph":"M","name":"horocache","pid":2,"tid":0,"args":{"version":"1","rank":2,"size":3,)"
                             R"("host":"a","clock_offset_ns":-5,"clock_error_ns":7,"clock_measured_ns":8,)"
                             R"("start_time_since_epoch_in_micros":9}})"),
            std::string::npos);
  return text;
}

OperationTrace Allreduce() {
  OperationTrace trace;
  trace.name = "grad";
  trace.op = "allreduce";
  trace.backend = "shm";
  trace.bytes = 400;
  trace.sequence = 9;
  trace.item = 1;
  trace.fused = 2;
  trace.submitted_ns = 1'000;
  trace.agreed_ns = 3'500;
  trace.started_ns = 4'000;
  trace.phase_ns = {0, 0, 4'001, 0};
  trace.ended_ns = 9'000;
  return trace;
}

TEST(TraceText, ShowsAnOperationWithItsPhasesInItsOwnRow) {
  TraceText text = Text();
  text.AddOperation(Allreduce());
  EXPECT_EQ(Take(&text), R"({"ph":"M","name":"thread_name","pid":2,"tid":1,"args":{"name":"grad"}},
{"ph":"X","name":"NEGOTIATE_ALLREDUCE","pid":2,"tid":1,"cat":"control","ts":1.000,"dur":2.500},
{"ph":"X","name":"ALLREDUCE","pid":2,"tid":1,"cat":"operation","ts":3.500,"dur":5.500,"args":{"process_set":0,"tensors":1,"bytes":400,"sequence":9,"item":1,"fused":2,"backend":"shm"}},
{"ph":"X","name":"QUEUE","pid":2,"tid":1,"cat":"queue","ts":3.500,"dur":0.500},
{"ph":"X","name":"SHM_ALLREDUCE","pid":2,"tid":1,"cat":"collective","ts":4.001,"dur":4.999})");
  text.AddOperation(Allreduce());
  EXPECT_EQ(Take(&text).find("thread_name"), std::string::npos) << "the row is there";
}

TEST(TextBuilder, GrowsWithTheTextAndReusesItsMemory) {
  TextBuilder text;
  std::string wanted, taken(100, 'x');
  for (int i = 0; i < 3; ++i) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{300}, size_t{7}}) {
      const std::string part(size, 'a');
      text.Append(part, INT64_MIN, UpperCase{"aZ_9"}, Microseconds{1'002'003}, '.', uint64_t{UINT64_MAX});
      wanted += part + "-9223372036854775808AZ_91002.003.18446744073709551615";
    }
    text.Swap(&taken);
    EXPECT_EQ(taken, std::exchange(wanted, ""));
    EXPECT_TRUE(text.empty());
  }
}

TEST(TraceText, PhasesFollowEachOther) {
  TraceText text = Text();
  OperationTrace trace = Allreduce();
  trace.first_ready_ns = 500;
  trace.phase_ns = {4'000, 5'000, 6'000, 8'000};
  text.AddOperation(trace);
  const std::string events = Take(&text);
  for (const char* event :
       {R"("name":"WAIT_FOR_OTHER_TENSOR_DATA","pid":2,"tid":1,"cat":"wait","ts":0.500,"dur":0.500})",
        R"("name":"WAIT_FOR_DATA","pid":2,"tid":1,"cat":"wait","ts":4.000,"dur":1.000})",
        R"("name":"MEMCPY_IN_FUSION_BUFFER","pid":2,"tid":1,"cat":"copy","ts":5.000,"dur":1.000})",
        R"("name":"SHM_ALLREDUCE","pid":2,"tid":1,"cat":"collective","ts":6.000,"dur":2.000})",
        R"("name":"MEMCPY_OUT_FUSION_BUFFER","pid":2,"tid":1,"cat":"copy","ts":8.000,"dur":1.000})"}) {
    EXPECT_NE(events.find(event), std::string::npos) << event << " in " << events;
  }
}

TEST(TraceText, AnOperationWithoutAgreementIsANegotiationWithItsError) {
  TraceText text = Text();
  OperationTrace trace = Allreduce();
  trace.name = "a\"b";
  trace.process_set = 3;
  trace.error = "rank 1 \"left\"";
  trace.agreed_ns = trace.started_ns = 0;
  text.AddOperation(trace);
  EXPECT_EQ(Take(&text), R"({"ph":"M","name":"thread_name","pid":2,"tid":1,"args":{"name":"set 3: a\"b"}},
{"ph":"X","name":"NEGOTIATE_ALLREDUCE","pid":2,"tid":1,"cat":"control","ts":1.000,"dur":8.000,"args":{"process_set":3,"tensors":1,"bytes":400,"error":"rank 1 \"left\""}})");
}

TEST(TraceText, ATaskIsASpanInTheRowOfItsThread) {
  TraceText text = Text();
  text.AddTask("hc-dag-0", "load \"x\"", 1'000, 3'500);
  text.AddTask("hc-dag-0", "next", 4'000, 4'000);
  EXPECT_EQ(Take(&text), R"({"ph":"M","name":"thread_name","pid":2,"tid":1,"args":{"name":"hc-dag-0"}},
{"ph":"X","name":"load \"x\"","pid":2,"tid":1,"cat":"task","ts":1.000,"dur":2.500},
{"ph":"X","name":"next","pid":2,"tid":1,"cat":"task","ts":4.000,"dur":0.000})");
}

TEST(TraceText, AnExchangeIsASpanWithItsArgumentsInTheRowOfItsLayer) {
  TraceText text = Text();
  text.AddExchange("experts of \"a\"", "EXCHANGE", R"({"round":7,"dropped":{"own_timeout":{"1":3}}})", 1'000, 3'500);
  text.AddExchange("experts of \"a\"", "EXCHANGE_LOSSLESS", "{}", 4'000, 4'500);
  EXPECT_EQ(Take(&text), R"({"ph":"M","name":"thread_name","pid":2,"tid":1,"args":{"name":"experts of \"a\""}},
{"ph":"X","name":"EXCHANGE","pid":2,"tid":1,"cat":"exchange","ts":1.000,"dur":2.500,"args":{"round":7,"dropped":{"own_timeout":{"1":3}}}},
{"ph":"X","name":"EXCHANGE_LOSSLESS","pid":2,"tid":1,"cat":"exchange","ts":4.000,"dur":0.500,"args":{}})");
}

TEST(TraceText, RoundsAndDroppedRecordsAreInstants) {
  TraceText text = Text();
  text.AddRound(1, 12, 34'567);
  text.AddDropped(5, 40'000);
  EXPECT_EQ(Take(&text),
            R"({"ph":"i","name":"CYCLE_START","pid":2,"tid":0,"s":"t","ts":34.567,"args":{"process_set":1,"round":12}},
{"ph":"i","name":"DROPPED","pid":2,"tid":0,"s":"t","ts":40.000,"args":{"records":5}})");
}

}  // namespace
}  // namespace horocache::observe
