#include "program/program.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace horocache::program {
namespace {

using Words = std::vector<int64_t>;

// Two ranks that send each other their chunk and add it up; two size classes, as if there were two chunks.
Words Exchange() {
  Words words = {static_cast<int64_t>(kProgramMagic), 2, 2, 1, 1, 0, 1};
  for (const int64_t peer : {1, 0}) {
    const Words rank = {
        3,    2,  0, 1,                                // buffers: input, output, one scratch
        2,                                             // number of thread blocks (thread blocks)
        peer, -1, 0, 1,                                // the first thread block sends
        0,    0,  1, 0,  0, -1, 0, 0, -1, peer, 0, 2,  // the second thread block receives, and adds when all is sent
        1,    0,  1, -1, 0, 2,  0, 0, 3,  0,    1, 2, 0, 0, 0, 1, 0, 0};
    words.insert(words.end(), rank.begin(), rank.end());
  }
  return words;
}

StatusOr<Program> Decode(const Words& words, size_t bytes) {
  std::vector<std::byte> memory(bytes);
  if (bytes > 0) std::memcpy(memory.data(), words.data(), bytes);
  return DecodeProgram(memory);
}

StatusOr<Program> Decode(const Words& words) { return Decode(words, words.size() * sizeof(int64_t)); }

TEST(Program, DecodesAPackedProgram) {
  const StatusOr<Program> program = Decode(Exchange());
  ASSERT_TRUE(program.ok()) << program.status().message();
  EXPECT_EQ(program->ranks, 2);
  EXPECT_EQ(program->classes, 2);
  EXPECT_TRUE(program->in_place);
  const RankProgram& second = program->programs[1];
  EXPECT_EQ(second.extents, (std::vector<int64_t>{2, 0, 1}));
  ASSERT_EQ(second.thread_blocks.size(), 2U);
  EXPECT_EQ(second.thread_blocks[0].send, 0);
  EXPECT_EQ(second.thread_blocks[1].receive, 0);
  const Step& add = second.steps[second.thread_blocks[1].first_step + 1];
  EXPECT_EQ(add.op, StepOp::kReduce);
  EXPECT_EQ(add.source.buffer, 2);
  EXPECT_EQ(add.destination.buffer, kInput);
  ASSERT_EQ(add.num_waits, 1U);
  EXPECT_EQ(second.waits[add.first_wait].thread_block, 0);
}

TEST(Program, HasThePropertiesOfEachOperation) {
  std::string found;
  for (int op = 0; op < kNumStepOps; ++op) {
    const auto step = static_cast<StepOp>(op);
    for (const bool does : {Pops(step), Pushes(step), Reduces(step), Stores(step), ReadsSource(step)}) {
      found += does ? '1' : '0';
    }
    found += ' ';
  }
  EXPECT_EQ(found, "01001 10010 00011 00111 10110 11010 11100 11110 ");
}

struct Damage {
  const char* name;
  size_t word;
  int64_t value;
  const char* text;
};

class DamagedProgram : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedProgram, IsRefusedWithItsPlace) {
  Words words = Exchange();
  words[GetParam().word] = GetParam().value;
  const StatusOr<Program> program = Decode(words);
  ASSERT_FALSE(program.ok());
  EXPECT_EQ(program.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(program.status().message().find(GetParam().text), std::string::npos) << program.status().message();
}

INSTANTIATE_TEST_SUITE_P(
    All, DamagedProgram,
    ::testing::Values(
        Damage{"Magic", 0, 1, "the first word is 1"}, Damage{"Ranks", 1, 5000, "the number of ranks"},
        Damage{"NoRanks", 1, 0, "the number of ranks is 0"}, Damage{"ThirdRank", 1, 3, "rank 2: it ends too early"},
        Damage{"Classes", 2, -1, "the number of size classes"}, Damage{"Refinement", 3, 0, "the refinement"},
        Damage{"Slots", 6, 9, "the number of slots is 9"}, Damage{"Buffers", 7, 1, "input and output are missing"},
        Damage{"ManyBuffers", 7, 1 << 20, "more than follow"},
        Damage{"Extent", 8, int64_t{1} << 40, "rank 0: the size of a buffer"},
        Damage{"ThreadBlocks", 11, int64_t{1} << 18, "the number of thread blocks is 262144, more than follow"},
        Damage{"Peer", 12, 2, "rank 0 thread block 0: the rank that it sends to is 2"},
        Damage{"Itself", 12, 0, "a rank has no connection with itself"},
        Damage{"NoPeer", 12, -1, "it sends, and the thread block does not"},
        Damage{"Steps", 15, 400000, "the number of steps is 400000, more than follow"},
        Damage{"Operation", 16, 16, "rank 0 thread block 0 step 0: the operation is 16"},
        Damage{"Finish", 16, 8, "it finishes sums, and makes none"},
        Damage{"OtherOperation", 16, 1, "the source is given for a step that has none"},
        Damage{"Class", 17, 2, "the size class is 2"},
        Damage{"OtherClass", 17, 1, "the source has chunks of another size class"},
        Damage{"Count", 18, 0, "the count is 0"}, Damage{"LongCount", 18, 3, "the source is outside of its buffer"},
        Damage{"Overflow", 18, INT64_MAX, "the count"}, Damage{"Buffer", 19, 3, "the source is 3"},
        Damage{"NoSource", 19, -1, "the source is missing"}, Damage{"Index", 20, 2, "outside"},
        Damage{"NegativeIndex", 20, -1, "the source is -1"}, Damage{"Channel", 14, 1, "messages to rank 1 on channel"},
        Damage{"Waits", 35, 1 << 18, "the number of waits"},
        Damage{"OtherWait", 44, 5, "rank 0 thread block 1 step 1: it waits for a step that is not there"},
        Damage{"LaterWait", 45, 1, "it waits for a step that is not there"},
        Damage{"OwnWait", 44, 1, "it waits for its own thread block"}),
    [](const auto& info) { return info.param.name; });

TEST(Program, RefusesEveryOtherLength) {
  const Words words = Exchange();
  const size_t whole = words.size() * sizeof(int64_t);
  for (size_t bytes = 0; bytes < whole; ++bytes) EXPECT_FALSE(Decode(words, bytes).ok()) << bytes;
  Words more = words;
  more.push_back(0);
  EXPECT_NE(Decode(more).status().message().find("more behind its end"), std::string::npos);
}

TEST(Program, SurvivesRandomWords) {
  std::mt19937_64 random(7);
  const int64_t values[] = {-1, 0, 1, 2, 7, 1 << 16, int64_t{1} << 24, INT64_MAX, INT64_MIN};
  for (int turn = 0; turn < 20000; ++turn) {
    Words words = Exchange();
    for (uint64_t i = 0; i <= random() % 3; ++i) words[random() % words.size()] = values[random() % std::size(values)];
    const StatusOr<Program> program = Decode(words);
    EXPECT_TRUE(program.ok() || program.status().code() == StatusCode::kCorrupt);
  }
}

}  // namespace
}  // namespace horocache::program
