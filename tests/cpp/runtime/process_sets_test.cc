#include "runtime/process_sets.h"

#include <gtest/gtest.h>

namespace horocache::runtime {
namespace {

TEST(ProcessSets, CountFromOneBesideTheGlobalSet) {
  const auto sets = ProcessSets::Make(4, {{0, 2}, {1, 2, 3}});
  ASSERT_TRUE(sets.ok()) << sets.status().ToString();
  EXPECT_EQ(sets->size(), 3);
  EXPECT_EQ(sets->ranks(0), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(sets->ranks(2), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(sets->RankIn(0, 3), 3);
  EXPECT_EQ(sets->RankIn(1, 2), 1);
  EXPECT_EQ(sets->RankIn(1, 1), -1);
  EXPECT_EQ(sets->RankIn(1, 3), -1);
  EXPECT_EQ(sets->Describe(1), "process set 1 (ranks 0, 2)");
  EXPECT_EQ(ProcessSets::AgreeText({{0, 2}, {1, 2, 3}}), "process set 1=0, 2\nprocess set 2=1, 2, 3\n");
  EXPECT_EQ(ProcessSets::AgreeText({}), "");
}

TEST(ProcessSets, ThatCannotBeAreRefusedWithTheirNumberAndRanks) {
  const auto why = [](int size, std::vector<std::vector<int>> sets) {
    const auto made = ProcessSets::Make(size, std::move(sets));
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
    return made.status().message();
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

}  // namespace
}  // namespace horocache::runtime
