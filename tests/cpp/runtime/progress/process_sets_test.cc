#include "runtime/progress/process_sets.h"

#include <gtest/gtest.h>

namespace horocache::runtime {
namespace {

uint32_t Add(ProcessSets* sets, std::vector<int> ranks) {
  const uint32_t number = sets->next();
  const Status proposed = sets->Propose(number, std::move(ranks));
  EXPECT_TRUE(proposed.ok()) << proposed.ToString();
  sets->Open(number);
  return number;
}

TEST(ProcessSets, CountFromOneBesideTheGlobalSet) {
  ProcessSets sets(4);
  EXPECT_EQ(Add(&sets, {0, 2}), 1u);
  EXPECT_EQ(Add(&sets, {1, 2, 3}), 2u);
  EXPECT_EQ(sets.ranks(0), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(sets.ranks(2), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(sets.RankIn(0, 3), 3);
  EXPECT_EQ(sets.RankIn(1, 2), 1);
  EXPECT_EQ(sets.RankIn(1, 1), -1);
  EXPECT_EQ(sets.RankIn(1, 3), -1);
  EXPECT_EQ(sets.Describe(1), "process set 1 (ranks 0, 2)");
  ASSERT_EQ(sets.Members().size(), 2u);
  EXPECT_EQ(sets.Members()[1].number, 2u);
  EXPECT_EQ(sets.Members()[1].ranks, (std::vector<int>{1, 2, 3}));
  sets.Close(1);
  ASSERT_EQ(sets.Members().size(), 1u);
  EXPECT_EQ(sets.Members()[0].number, 2u);
  EXPECT_EQ(ProcessSets::AgreeText({{0, 2}, {1, 2, 3}}), "process set 1=0, 2\nprocess set 2=1, 2, 3\n");
  EXPECT_EQ(ProcessSets::AgreeText({}), "");
}

TEST(ProcessSets, InvalidSetsAreRefusedWithTheirNumberAndRanks) {
  const auto why = [](int size, std::vector<std::vector<int>> all) {
    ProcessSets sets(size);
    for (size_t i = 0; i + 1 < all.size(); ++i) Add(&sets, all[i]);
    const Status refused = sets.Propose(sets.next(), all.back());
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    return refused.message();
  };
  EXPECT_EQ(why(3, {{0, 1}, {}}), "process set 2 ([]) has no ranks.");
  EXPECT_EQ(why(3, {{1, 3}}), "process set 1 ([1, 3]) has ranks that the job does not have: it has 3, 0 to 2.");
  EXPECT_EQ(why(3, {{-1, 2}}), "process set 1 ([-1, 2]) has ranks that the job does not have: it has 3, 0 to 2.");
  EXPECT_EQ(why(3, {{2, 1}}), "process set 1 ([2, 1]) must have distinct ranks in ascending order.");
  EXPECT_EQ(why(3, {{1, 1}}), "process set 1 ([1, 1]) must have distinct ranks in ascending order.");
  EXPECT_EQ(why(3, {{0, 2}, {1}, {0, 2}}),
            "process set 3 ([0, 2]) has the ranks of process set 1, which is registered already; use that one.");
  EXPECT_EQ(why(1, {{0}}),
            "process set 1 ([0]) has the ranks of the global process set, which is registered already; use that one.");
}

TEST(ProcessSets, DeclaredSetsMayHaveEqualRanksAndSkippedNumbers) {
  ProcessSets sets(3);
  ASSERT_TRUE(sets.Declare(4, {0, 1, 2}).ok());
  ASSERT_TRUE(sets.Declare(2, {0, 1, 2}).ok());
  sets.Open(2);
  EXPECT_EQ(sets.next(), 5u);
  EXPECT_TRUE(sets.CheckMember(2, 1, "barrier").ok());
  EXPECT_FALSE(sets.CheckPending(3).ok());
  EXPECT_EQ(sets.Declare(2, {0, 1}).message(), "process set 2 ([0, 1]) cannot have this number: it has been used.");
  EXPECT_EQ(sets.Declare(3, {1, 3}).message(),
            "process set 3 ([1, 3]) has ranks that the job does not have: it has 3, 0 to 2.");
  sets.Close(4);
  EXPECT_FALSE(sets.Declare(4, {0, 1}).ok());
  EXPECT_FALSE(sets.Declare(0, {0, 1}).ok());
}

TEST(ProcessSets, OnlyMembersMayUseAnOpenSet) {
  ProcessSets sets(3);
  const auto refused = [&sets](uint32_t number, int rank) {
    return sets.CheckMember(number, rank, "barrier").message();
  };
  const std::string none = "barrier: there is no process set 1; 0 are registered besides the global one";
  EXPECT_TRUE(sets.CheckMember(0, 2, "barrier").ok());
  EXPECT_EQ(refused(1, 0), none);
  EXPECT_FALSE(sets.CheckPending(1).ok());
  ASSERT_TRUE(sets.Propose(1, {0, 2}).ok());
  EXPECT_EQ(refused(1, 0), none);
  EXPECT_TRUE(sets.CheckPending(1).ok());
  EXPECT_FALSE(sets.CheckPending(0).ok());
  EXPECT_FALSE(sets.CheckRemovable(1).ok());
  sets.Open(1);
  EXPECT_TRUE(sets.CheckMember(1, 0, "barrier").ok());
  EXPECT_EQ(refused(1, 1), "barrier: rank 1 is not in process set 1 (ranks 0, 2)");
  EXPECT_TRUE(sets.CheckRemovable(1).ok());
  EXPECT_FALSE(sets.CheckRemovable(0).ok());
  sets.Close(1);
  EXPECT_EQ(refused(1, 0), none);
  EXPECT_FALSE(sets.CheckRemovable(1).ok());
  EXPECT_EQ(Add(&sets, {0, 2}), 2u);  // the same ranks under another number
}

TEST(ProcessSets, NumbersMayHaveGapsAndAreNotReused) {
  ProcessSets sets(4);
  ASSERT_TRUE(sets.Propose(3, {0, 1}).ok());  // another rank has already used 1 and 2
  EXPECT_EQ(sets.CheckMember(2, 0, "barrier").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sets.CheckPending(2).message(), "process set 2 has not been proposed");
  EXPECT_EQ(sets.Propose(2, {0, 2}).message(), "process set 2 ([0, 2]) cannot have this number: it has been used.");
  sets.Close(3);
  EXPECT_EQ(Add(&sets, {0, 1}), 4u);
}

}  // namespace
}  // namespace horocache::runtime
