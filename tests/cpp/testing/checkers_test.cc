// Tests of the checkers: a good history passes, and the checkers find each mutation of it.

#include "testing/checkers.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "testing/random_scenario.h"

namespace horocache::testing {
namespace {

std::shared_ptr<const wire::Signature> Sign(const std::string& name, int tensors = 1, int64_t length = 4) {
  std::vector<std::vector<int64_t>> shapes(static_cast<size_t>(tensors), {length});
  return std::make_shared<wire::Signature>(MakeSignature(wire::Op::kAllreduce, name, shapes));
}

control::PlanItem Whole(control::OpId op, std::shared_ptr<const wire::Signature> signature) {
  const auto tensors = static_cast<int>(signature->tensors.size());
  return {op, std::move(signature), 0, tensors, true};
}

// Three ranks submit "a" and the group "g", whose two tensors run in two pieces, and complete both.
class CheckersTest : public ::testing::Test {
 protected:
  CheckersTest() {
    history_.seed = 77;
    history_.sets.resize(1);
    const auto a = Sign("a"), g = Sign("g", 2);
    for (int rank = 0; rank < 3; ++rank) {
      MemberHistory member;
      member.rank = rank;
      const auto first = static_cast<control::OpId>(10 * rank + 1), second = first + 1;
      const uint64_t step = static_cast<uint64_t>(rank);
      member.submitted = {{step, 0, first, a, {}}, {step + 10, 0, second, g, {}}};
      control::Plan one{.sequence = 0, .items = {Whole(first, a), {second, g, 0, 1, false}}};
      control::Plan two{.sequence = 1, .items = {{second, g, 1, 1, true}}};
      member.planned = {{step + 20, one, {}}, {step + 20, two, {}}};
      member.ended = {{step + 30, 0, first, false, {}}, {step + 30, 0, second, false, {}}};
      member.rounds = {{step, 1, 111, 0}, {step + 20, 2, 222, 2}};
      history_.sets[0].members.push_back(member);
    }
  }

  MemberHistory& Rank(int rank) { return history_.sets[0].members[static_cast<size_t>(rank)]; }
  // The first violation, as text.
  std::string Found() { return CheckAll(history_).message(); }
  void ExpectFound(Status (*checker)(const History&), const std::string& part) {
    const Status status = checker(history_);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("seed 77"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }

  History history_;
};

TEST_F(CheckersTest, PassAGoodHistory) { EXPECT_EQ(Found(), ""); }

// "a" is inline, with 4 numbers of each rank; the group runs after it, in one piece.
class InlineCheckersTest : public CheckersTest {
 protected:
  static std::vector<std::byte> Numbers(float first) {
    const std::vector<float> numbers = {first, first + 1, first + 2, first + 3};
    const auto bytes = std::as_bytes(std::span(numbers));
    return {bytes.begin(), bytes.end()};
  }

  InlineCheckersTest() {
    std::vector<uint64_t> all(6);
    for (int rank = 0; rank < 3; ++rank) {
      Rank(rank).submitted[0].data = Numbers(10.0f * static_cast<float>(rank));
      std::memcpy(&all[2 * static_cast<size_t>(rank)], Rank(rank).submitted[0].data.data(), 16);
    }
    const std::vector<float> sums = {30, 33, 36, 39};
    const auto bytes = std::as_bytes(std::span(sums));
    for (int rank = 0; rank < 3; ++rank) {
      auto& planned = Rank(rank).planned;
      planned[0].plan.items.pop_back();
      planned[1].plan.items = {Whole(Rank(rank).submitted[1].op, Rank(rank).submitted[1].signature)};
      planned[0].plan.contributions = all;
      planned[0].result.assign(bytes.begin(), bytes.end());
    }
  }
};

TEST_F(InlineCheckersTest, PassAGoodHistory) { EXPECT_EQ(Found(), ""); }

TEST_F(InlineCheckersTest, FindAWrongResult) {
  Rank(1).planned[0].result = Numbers(1);
  ExpectFound(CheckInline,
              "rank 1 step 21: plan number 0, \"a\", was inline in its round and was reduced to something else");
}

TEST_F(InlineCheckersTest, FindDataThatARankHadNotSubmitted) {
  Rank(2).submitted[0].data = Numbers(21);
  ExpectFound(CheckInline, "had other data of rank 2 than that had submitted");
}

TEST_F(InlineCheckersTest, FindRanksThatReadDifferentData) {
  ++Rank(2).planned[0].plan.contributions[5];
  ExpectFound(CheckOrder, "the inline data of the round");
}

TEST_F(InlineCheckersTest, FindAnInlineAllreduceWhileARankHasJoined) {
  Rank(0).planned[0].plan.joined = {2};
  ExpectFound(CheckInline, "joined");
}

TEST_F(InlineCheckersTest, AllowARankThatDiedBeforeTheResult) {
  Rank(2).planned.clear();
  Rank(2).ended.clear();
  Rank(2).killed = true;
  EXPECT_TRUE(CheckInline(history_).ok());
  Rank(2).submitted.clear();
  ExpectFound(CheckInline, "had other data of rank 2");
}

TEST_F(CheckersTest, FindADifferentCache) {
  Rank(2).rounds[1].cache_hash = 223;
  ExpectFound(CheckCaches, "rank 2 step 22: in round 2");
}

TEST_F(CheckersTest, FindPlansInAnotherOrder) {
  std::swap(Rank(1).planned[0], Rank(1).planned[1]);
  ExpectFound(CheckOrder, "rank 1 step 21: plan number 0 differs");
}

TEST_F(CheckersTest, FindAPlanWithOtherItems) {
  Rank(1).planned[0].plan.items.pop_back();
  ExpectFound(CheckOrder, "items");
}

TEST_F(CheckersTest, FindAPlanWithAnotherChoice) {
  Rank(1).planned[0].plan.choice.lane = 3;
  ExpectFound(CheckOrder, "choice");
}

TEST_F(CheckersTest, AllowAPrefix) {
  Rank(2).planned.pop_back();
  EXPECT_TRUE(CheckOrder(history_).ok());
}

TEST_F(CheckersTest, FindAnOperationThatNeverEnds) {
  Rank(1).ended.pop_back();
  ExpectFound(CheckEnds, "rank 1 step 11: \"g\" never ended");
}

TEST_F(CheckersTest, FindAnOperationThatEndsTwice) {
  Rank(0).ended.push_back(Rank(0).ended[0]);
  ExpectFound(CheckEnds, "ended twice");
}

TEST_F(CheckersTest, FindAnEndWithoutASubmission) {
  Rank(0).ended.push_back({40, 0, 999, false, {}});
  ExpectFound(CheckEnds, "never submitted");
}

TEST_F(CheckersTest, FindSettingsThatChangeAtAnotherPoint) {
  for (int rank = 0; rank < 3; ++rank) Rank(rank).settings = {{5, 2, 1, {.cache = true}}, {6, 3, 2, {.cache = false}}};
  EXPECT_EQ(Found(), "");
  Rank(2).settings.pop_back();
  EXPECT_EQ(Found(), "") << "a rank that ended earlier";
  Rank(2).settings[0].round = 3;
  ExpectFound(CheckSettings, "change 0 of its settings came in round 3 after 1 plans, on rank 0 in round 2");
  Rank(2).settings[0] = {5, 2, 0, {.cache = true}};
  ExpectFound(CheckSettings, "after 0 plans");
  Rank(2).settings[0] = {5, 2, 1, {.cache = false}};
  ExpectFound(CheckSettings, "or is another");
}

TEST_F(CheckersTest, ExcuseAKilledRankFromEnding) {
  Rank(1).ended.clear();
  Rank(1).killed = true;
  EXPECT_TRUE(CheckEnds(history_).ok());
}

TEST_F(CheckersTest, FindAGroupWithAMissingPart) {
  for (int rank = 0; rank < 3; ++rank) Rank(rank).planned.pop_back();
  ExpectFound(CheckGroups, "ran in part only");
}

TEST_F(CheckersTest, FindAGroupWithOtherOperationsBetweenItsPieces) {
  for (int rank = 0; rank < 3; ++rank) {
    auto& planned = Rank(rank).planned;
    planned.insert(planned.begin() + 1, PlanRecord{planned[0].step, control::Plan{.sequence = 1}, {}});
  }
  ExpectFound(CheckGroups, "does not continue");
}

TEST_F(CheckersTest, FindAnOperationThatFailedAfterItRan) {
  Rank(0).ended[0].status = {StatusCode::kStall, "late"};
  ExpectFound(CheckGroups, "failed after it was planned");
}

TEST_F(CheckersTest, FindAPlanThatSomeRankHadNotSubmitted) {
  Rank(2).submitted[0].step = 25;
  ExpectFound(CheckValidity, "runs \"a\" but rank 2 had not submitted it");
}

TEST_F(CheckersTest, FindAPlanThatSomeRankSubmittedDifferently) {
  Rank(2).submitted[1].signature = Sign("g", 2, 5);
  ExpectFound(CheckValidity, "another signature");
}

TEST_F(CheckersTest, FindARankThatCountsAsJoinedButIsNot) {
  for (int rank = 0; rank < 3; ++rank) Rank(rank).planned[0].plan.joined = {1};
  ExpectFound(CheckValidity, "rank 1 counts as joined");
}

// Each kind of failure of "a" on rank 0, with nothing in the history that explains it.
TEST_F(CheckersTest, FindFailuresWithoutAReason) {
  for (const StatusCode code : {StatusCode::kPeerLost, StatusCode::kAborted, StatusCode::kShutDown,
                                StatusCode::kMismatch, StatusCode::kInternal, StatusCode::kDuplicateName}) {
    Rank(0).ended[0].status = {code, "because"};
    ExpectFound(CheckFailures, "\"a\" failed with");
  }
}

TEST_F(CheckersTest, FindAStallOfAnOperationThatAllHadSubmitted) {
  for (int rank = 0; rank < 3; ++rank) {
    Rank(rank).ended[0].status = {StatusCode::kStall, "stalled"};
    Rank(rank).ended[0].time_ns = 900'000'000;
    Rank(rank).planned.clear();
  }
  ExpectFound(CheckFailures, "all members had submitted it alike");
  Rank(1).submitted.erase(Rank(1).submitted.begin());
  Rank(1).ended.erase(Rank(1).ended.begin());
  EXPECT_TRUE(CheckFailures(history_).ok());
}

TEST_F(CheckersTest, AcceptARealMismatch) {
  Rank(0).ended[0].status = {StatusCode::kMismatch, "shape"};
  Rank(1).submitted[0].signature = Sign("a", 1, 9);
  EXPECT_TRUE(CheckFailures(history_).ok());
}

TEST_F(CheckersTest, FindAnAgreementThatSpins) {
  Rank(1).spins = 3;
  ExpectFound(CheckSleep, "rank 1");
}

TEST_F(CheckersTest, ReportTheReasonOfAStoppedRun) {
  history_.run = {StatusCode::kInternal, "rank 1 waits"};
  EXPECT_EQ(Found(), "seed 77: rank 1 waits");
}

}  // namespace
}  // namespace horocache::testing
