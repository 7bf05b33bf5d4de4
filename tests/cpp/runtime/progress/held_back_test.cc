#include "runtime/progress/held_back.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace horocache::runtime {
namespace {

constexpr int64_t kSmallBytes = 100;
constexpr int64_t kBatchBytes = HeldBack::kBatchBytes;
constexpr int64_t kAgreementNs = HeldBack::kPatienceNs;
constexpr int64_t kMostHeldNs = HeldBack::kMostHeldNs;

struct TestOperation : Operation {
  TestOperation(const std::string& name, int32_t priority, int64_t size, wire::Op op = wire::Op::kAllreduce) {
    request.signature.op = op;
    request.signature.name = name;
    request.signature.priority = priority;
    bytes = size;
  }
};

std::string NameOf(const Operation* operation) { return operation->request.signature.name; }

TEST(HeldBack, ConcernsLargeAllreducesWithAPriority) {
  const HeldBack held(kSmallBytes);
  EXPECT_TRUE(held.Concerns(TestOperation("a", 1, kSmallBytes + 1)));
  EXPECT_TRUE(held.Concerns(TestOperation("a", -1, kSmallBytes + 1)));
  EXPECT_FALSE(held.Concerns(TestOperation("a", 0, kSmallBytes + 1)));
  EXPECT_FALSE(held.Concerns(TestOperation("a", 1, kSmallBytes)));
  EXPECT_FALSE(held.Concerns(TestOperation("a", 1, kSmallBytes + 1, wire::Op::kBroadcast)));
}

TEST(HeldBack, GivesTheHighestPriorityFirstAndOfEqualOnesTheOldest) {
  HeldBack held(kSmallBytes);
  TestOperation a("a", 1, 200), b("b", 5, 200), c("c", 1, 200), d("d", 5, 200), e("e", -3, 200);
  for (Operation* each : {&a, &b, &c, &d, &e}) held.Add(each, 0);
  std::string order;
  while (!held.empty()) order += NameOf(held.Take());
  EXPECT_EQ(order, "bdace");
}

TEST(HeldBack, ProposesABatchAtATimeWhileNoLaneHasABacklog) {
  HeldBack held(kSmallBytes);
  TestOperation a("a", 3, kBatchBytes / 2), b("b", 2, kBatchBytes / 2), c("c", 1, kBatchBytes / 2);
  for (Operation* each : {&a, &b, &c}) held.Add(each, 10);
  EXPECT_FALSE(held.MayPropose(true, 10));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(held.MayPropose(false, 10));
    held.NoteProposed(held.Take(), 10);
  }
  EXPECT_FALSE(held.MayPropose(false, 20));
  held.NoteSettled(&a);
  held.NoteSettled(&a);  // counts once
  EXPECT_TRUE(held.MayPropose(false, 20));
}

TEST(HeldBack, AnOperationLargerThanABatchIsProposedAlone) {
  HeldBack held(kSmallBytes);
  TestOperation a("a", 2, 3 * kBatchBytes), b("b", 1, 200);
  held.Add(&a, 10);
  held.Add(&b, 10);
  ASSERT_TRUE(held.MayPropose(false, 10));
  held.NoteProposed(held.Take(), 10);
  EXPECT_FALSE(held.MayPropose(false, 10));
  held.NoteSettled(&a);
  EXPECT_TRUE(held.MayPropose(false, 10));
}

TEST(HeldBack, ABatchThatIsNotAgreedOnIsFollowedByTheNextOneAfterATime) {
  HeldBack held(kSmallBytes);
  TestOperation a("a", 3, kBatchBytes), b("b", 2, kBatchBytes), c("c", 1, kBatchBytes);
  for (Operation* each : {&a, &b, &c}) held.Add(each, 0);
  held.NoteProposed(held.Take(), 0);
  EXPECT_EQ(held.NextNs(false), kAgreementNs);
  EXPECT_FALSE(held.MayPropose(false, kAgreementNs - 1));
  EXPECT_FALSE(held.MayPropose(true, kAgreementNs));
  ASSERT_TRUE(held.MayPropose(false, kAgreementNs));
  held.NoteProposed(held.Take(), kAgreementNs);
  held.NoteSettled(&a);  // of the batch before
  EXPECT_FALSE(held.MayPropose(false, kAgreementNs));
  held.NoteSettled(&b);
  EXPECT_TRUE(held.MayPropose(false, kAgreementNs));
}

TEST(HeldBack, AllAreDueWhenNoneHasBeenProposedForALongTime) {
  HeldBack held(kSmallBytes);
  TestOperation a("a", 3, kBatchBytes), b("b", 2, kBatchBytes), c("c", 1, kBatchBytes);
  EXPECT_EQ(held.NextNs(true), kNever);
  EXPECT_FALSE(held.IsOverdue(kMostHeldNs));
  for (Operation* each : {&a, &b, &c}) held.Add(each, 10);
  EXPECT_EQ(held.NextNs(true), 10 + kMostHeldNs);
  held.NoteProposed(held.Take(), 20);
  EXPECT_EQ(held.NextNs(true), 20 + kMostHeldNs);
  EXPECT_FALSE(held.IsOverdue(19 + kMostHeldNs));
  EXPECT_TRUE(held.IsOverdue(20 + kMostHeldNs));
  held.Take();
  held.Take();
  EXPECT_FALSE(held.IsOverdue(20 + kMostHeldNs));
}

}  // namespace
}  // namespace horocache::runtime
