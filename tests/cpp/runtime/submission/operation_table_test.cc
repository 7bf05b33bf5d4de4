#include "runtime/submission/operation_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace horocache::runtime {
namespace {

class OperationTableTest : public ::testing::Test {
 protected:
  Operation* Make(const std::string& name, int members = 1) {
    Operation* operation = table_.New();
    wire::Signature& signature = operation->request.signature;
    signature.op = wire::Op::kAllreduce;
    signature.name = name;
    signature.tensors.assign(static_cast<size_t>(members), {});
    for (int i = 0; i < members; ++i) {
      signature.tensors[static_cast<size_t>(i)].name = members == 1 ? name : name + "." + std::to_string(i);
    }
    return operation;
  }
  Status Add(Operation* operation) { return table_.Add(operation, 1, &first_); }

  observe::FlightRecorder recorder_;
  Metrics metrics_{1};
  // Adds an operation that a device is running.
  Operation* Launch(Operation* operation) {
    EXPECT_TRUE(Add(operation).ok());
    table_.NoteLaunched(operation, nullptr);
    return operation;
  }

  std::vector<std::string> failures_, unseen_;
  int freed_ = 0;
  std::vector<Result> results_;
  OperationTable table_{&recorder_,
                        &metrics_,
                        {.on_failure = [this](const Status& why) { failures_.push_back(why.message()); },
                         .on_unseen_failure = [this](const Status& why, uint32_t) { unseen_.push_back(why.message()); },
                         .on_freed = [this] { ++freed_; }}};
  bool first_ = false;
};

TEST_F(OperationTableTest, OnlyTheFirstSubmissionOfABatchIsFirst) {
  ASSERT_TRUE(Add(Make("a")).ok());
  EXPECT_TRUE(first_);
  ASSERT_TRUE(Add(Make("b")).ok());
  EXPECT_FALSE(first_);
  std::vector<Operation*> drained;
  table_.Drain(&drained);
  ASSERT_EQ(drained.size(), 2u);
  EXPECT_EQ(drained[0]->request.signature.name, "a");
  ASSERT_TRUE(Add(Make("c")).ok());
  EXPECT_TRUE(first_);
}

TEST_F(OperationTableTest, ANameInFlightIsADuplicateUntilItIsDone) {
  Operation* first = Make("a");
  ASSERT_TRUE(Add(first).ok());
  Operation* second = Make("a");
  EXPECT_EQ(Add(second).code(), StatusCode::kDuplicateName);
  table_.Recycle(second);
  table_.Finish(first, Status::Ok());
  EXPECT_TRUE(Add(Make("a")).ok());
}

TEST_F(OperationTableTest, EachProcessSetHasItsOwnNamesAndAutomaticNumbers) {
  const auto add = [this](const std::string& name, uint32_t set) {
    Operation* operation = Make(name);
    operation->process_set = set;
    const Status status = Add(operation);
    return status.ok() ? operation->request.signature.name : status.message();
  };
  EXPECT_EQ(add("a", 0), "a");
  EXPECT_EQ(add("a", 2), "a");
  EXPECT_NE(add("a", 2), "a");
  EXPECT_EQ(add("", 0), "allreduce.noname.0");
  EXPECT_EQ(add("", 0), "allreduce.noname.1");
  EXPECT_EQ(add("", 2), "allreduce.noname.0");
}

TEST_F(OperationTableTest, AMemberOfAGroupIsInFlightWithItsGroup) {
  ASSERT_TRUE(Add(Make("group", 3)).ok());
  Operation* clash = Make("group.1");
  EXPECT_EQ(Add(clash).code(), StatusCode::kDuplicateName);
  table_.Recycle(clash);
  EXPECT_TRUE(Add(Make("group.3")).ok());
}

// Fills the operation as a binding does for a repeated group.
void FillAgain(Operation* operation, const std::string& name) {
  wire::Signature& signature = operation->request.signature;
  operation->prepared.same_request = std::exchange(operation->prepared.filled, false);
  if (operation->prepared.same_request) return;
  signature.op = wire::Op::kAllreduce;
  signature.name = name;
  signature.tensors.assign(2, {});
  for (const size_t i : {0, 1}) signature.tensors[i] = {name + "." + std::to_string(i), DType::kFloat32, {3}};
}

TEST_F(OperationTableTest, ARepeatedGroupReusesItsRecord) {
  Operation* const first = table_.NewGroup("g");
  EXPECT_FALSE(first->prepared.filled);
  FillAgain(first, "g");
  ASSERT_TRUE(Add(first).ok());
  EXPECT_EQ(first->bytes, 24);
  table_.Finish(first, Status::Ok());
  table_.Recycle(first);
  EXPECT_NE(table_.NewGroup("h"), first);
  EXPECT_NE(table_.New(), first);
  Operation* const again = table_.NewGroup("g");
  ASSERT_EQ(again, first);
  EXPECT_TRUE(again->prepared.filled);
  FillAgain(again, "g");
  ASSERT_TRUE(Add(again).ok());
  EXPECT_EQ(again->bytes, 24);
  Operation* clash = Make("g.1");
  EXPECT_EQ(Add(clash).code(), StatusCode::kDuplicateName) << "the members' names are claimed again";
  table_.Recycle(clash);
  table_.Finish(again, Status::Ok());
  EXPECT_TRUE(Add(Make("g.1")).ok());
}

TEST_F(OperationTableTest, AGroupWithAMemberInFlightIsRefusedAlsoWhenRepeated) {
  Operation* operation = table_.NewGroup("g");
  FillAgain(operation, "g");
  ASSERT_TRUE(Add(operation).ok());
  table_.Finish(operation, Status::Ok());
  table_.Recycle(operation);
  Operation* const member = Make("g.0");
  ASSERT_TRUE(Add(member).ok());
  operation = table_.NewGroup("g");
  FillAgain(operation, "g");
  const Status refused = Add(operation);
  EXPECT_EQ(refused.code(), StatusCode::kDuplicateName);
  EXPECT_NE(refused.message().find("'g.0'"), std::string::npos) << refused.message();
  table_.Recycle(operation);
  table_.Finish(member, Status::Ok());
  operation = table_.NewGroup("g");
  EXPECT_FALSE(operation->prepared.filled) << "a refused group is taken for a sent group";
  FillAgain(operation, "g");
  EXPECT_TRUE(Add(operation).ok());
}

TEST_F(OperationTableTest, TwoGroupsOfOneNameHaveSeparateRecords) {
  Operation* const first = table_.NewGroup("g");
  Operation* const second = table_.NewGroup("g");
  EXPECT_NE(first, second);
  table_.Recycle(second);
  table_.Recycle(first);
  EXPECT_EQ(table_.NewGroup("g"), first);
}

TEST_F(OperationTableTest, ManyNamesOfGroupsDoNotFillTheTable) {
  Operation* const in_flight = table_.NewGroup("in flight");
  for (int i = 0; i < 3000; ++i) {
    Operation* const operation = table_.NewGroup("step " + std::to_string(i));
    EXPECT_LT(operation->handle & 0xffffff, 300);
    table_.Recycle(operation);
  }
  table_.Recycle(in_flight);
  EXPECT_EQ(table_.NewGroup("in flight"), in_flight);
}

TEST_F(OperationTableTest, NamesThatNeverReturnDoNotFillTheTable) {
  Operation* const in_flight = Make("in flight");
  ASSERT_TRUE(Add(in_flight).ok());
  const std::string rest(4000, 'x');
  std::vector<Operation*> drained;
  size_t most = 0;
  for (int i = 0; i < 20000; ++i) {
    Operation* const operation = Make("step " + std::to_string(i) + rest);
    ASSERT_TRUE(Add(operation).ok());
    table_.Drain(&drained);
    table_.Finish(operation, Status::Ok());
    table_.Recycle(operation);
    most = std::max(most, table_.KeptNames(0));
  }
  EXPECT_LT(most, 5000) << "of 4 KiB each, they take 16 MiB";
  EXPECT_EQ(Add(Make("in flight")).code(), StatusCode::kDuplicateName);
}

TEST_F(OperationTableTest, ANameThatASetHasForgottenIsTakenAgain) {
  Operation* operation = table_.NewGroup("g");
  operation->process_set = 3;
  FillAgain(operation, "g");
  ASSERT_TRUE(Add(operation).ok());
  table_.Finish(operation, Status::Ok());
  table_.Recycle(operation);
  table_.ForgetSet(3);
  operation = table_.NewGroup("g");
  operation->process_set = 3;
  FillAgain(operation, "g");
  ASSERT_TRUE(Add(operation).ok());
  Operation* clash = Make("g.1");
  clash->process_set = 3;
  EXPECT_EQ(Add(clash).code(), StatusCode::kDuplicateName);
}

TEST_F(OperationTableTest, ARefusedGroupLeavesNoMemberBehind) {
  ASSERT_TRUE(Add(Make("group.2")).ok());
  Operation* refused = Make("group", 3);
  EXPECT_EQ(Add(refused).code(), StatusCode::kDuplicateName);
  table_.Recycle(refused);
  EXPECT_TRUE(Add(Make("group.0")).ok());
}

TEST_F(OperationTableTest, AutomaticNamesTakeTheLowestNumberNotYetConsumed) {
  Operation* zero = Make("");
  Operation* one = Make("");
  ASSERT_TRUE(Add(zero).ok() && Add(one).ok());
  EXPECT_EQ(zero->request.signature.name, "allreduce.noname.0");
  EXPECT_EQ(one->request.signature.name, "allreduce.noname.1");
  table_.Finish(zero, Status::Ok());
  Operation* two = Make("");
  ASSERT_TRUE(Add(two).ok());
  EXPECT_EQ(two->request.signature.name, "allreduce.noname.2") << "0 is done, but its handle is not consumed";
  table_.Recycle(zero);
  Operation* again = Make("");
  ASSERT_TRUE(Add(again).ok());
  EXPECT_EQ(again->request.signature.name, "allreduce.noname.0");
}

TEST_F(OperationTableTest, AConsumedHandleIsNeverFoundAgain) {
  Operation* operation = Make("a");
  const int64_t handle = operation->handle;
  ASSERT_TRUE(Add(operation).ok());
  EXPECT_EQ(table_.Find(handle), operation);
  table_.Finish(operation, Status::Ok());
  table_.Recycle(operation);
  EXPECT_EQ(table_.Find(handle), nullptr);
  Operation* reused = Make("b");
  EXPECT_EQ(reused, operation) << "records are pooled";
  EXPECT_NE(reused->handle, handle);
  EXPECT_EQ(table_.Find(handle), nullptr);
  EXPECT_EQ(table_.Find(-1), nullptr);
  EXPECT_EQ(table_.Find(int64_t{1} << 60), nullptr);
}

TEST_F(OperationTableTest, OwnersAreTakenOnceAndNotFromAReusedRecord) {
  int tensor_a = 0, tensor_b = 0;
  Operation* operation = Make("a");
  operation->owner = &tensor_a;
  ASSERT_TRUE(Add(operation).ok());
  std::vector<void*> owners;
  table_.TakeOwners(&owners);
  EXPECT_TRUE(owners.empty()) << "it is not done";
  table_.Finish(operation, Status::Ok());
  operation->owner = nullptr;  // the binding consumed it
  table_.Recycle(operation);
  Operation* reused = Make("b");
  reused->owner = &tensor_b;
  ASSERT_TRUE(Add(reused).ok());
  table_.TakeOwners(&owners);
  EXPECT_TRUE(owners.empty()) << "its tensors are in flight";
  table_.Finish(reused, Status::Ok());
  table_.TakeOwners(&owners);
  EXPECT_EQ(owners, std::vector<void*>{&tensor_b});
}

TEST_F(OperationTableTest, ALaunchedOperationIsNotDoneAndItsNamesAreFree) {
  Operation* const operation = Launch(Make("a"));
  EXPECT_TRUE(Reached(*operation, OperationState::kLaunched));
  EXPECT_FALSE(IsDone(*operation));
  Operation* const again = Make("a");
  EXPECT_TRUE(Add(again).ok());
  table_.Finish(operation, Status::Ok());
  EXPECT_EQ(Add(Make("a")).code(), StatusCode::kDuplicateName) << "the second one is in flight";
}

TEST_F(OperationTableTest, AReleasedOperationKeepsItsOwnerUntilItIsDone) {
  int tensor = 0;
  Operation* const operation = Make("a");
  operation->owner = &tensor;
  const int64_t handle = Launch(operation)->handle;
  ASSERT_TRUE(table_.Release(operation, &results_));
  EXPECT_EQ(table_.Find(handle), nullptr);
  EXPECT_EQ(table_.launched(), 1);
  EXPECT_EQ(table_.Pending().size(), 1u);
  EXPECT_NE(Make("b"), operation) << "the device still uses it";
  std::vector<void*> owners;
  table_.TakeOwners(&owners);
  EXPECT_TRUE(owners.empty());
  EXPECT_EQ(freed_, 0);
  table_.Finish(operation, Status::Ok());
  EXPECT_EQ(freed_, 1);
  table_.TakeOwners(&owners);
  EXPECT_EQ(owners, std::vector<void*>{&tensor});
  EXPECT_EQ(table_.launched(), 0);
  EXPECT_EQ(Make("c"), operation) << "it is back in the pool";
  EXPECT_TRUE(failures_.empty() && unseen_.empty());
}

TEST_F(OperationTableTest, AnOperationThatIsDoneCannotBeReleased) {
  Operation* const operation = Launch(Make("a"));
  table_.Finish(operation, InvalidArgumentError("no"));
  EXPECT_FALSE(table_.Release(operation, &results_));
  EXPECT_EQ(operation->status.message(), "no");
  EXPECT_EQ(failures_, std::vector<std::string>{"no"});
  EXPECT_TRUE(unseen_.empty()) << "the caller sees it";
}

TEST_F(OperationTableTest, AFailureOfAReleasedOperationIsUnseen) {
  Operation* const operation = Launch(Make("a"));
  ASSERT_TRUE(table_.Release(operation, &results_));
  table_.FailAll({StatusCode::kPeerLost, "rank 1 is gone"});
  EXPECT_EQ(failures_, std::vector<std::string>{"rank 1 is gone"});
  EXPECT_EQ(unseen_, failures_);
}

// Takes the outcomes of operations.
struct Outcomes {
  std::vector<std::string> texts;
  Listener listener() {
    return {[](void* context, Status status) noexcept {
              static_cast<Outcomes*>(context)->texts.push_back(status.ok() ? "ok" : status.message());
            },
            this};
  }
};

TEST_F(OperationTableTest, AListenerGetsTheOutcomeAndTheHandleStaysValid) {
  Outcomes outcomes;
  Operation* const good = Make("a");
  Operation* const bad = Make("b");
  ASSERT_TRUE(Add(good).ok() && Add(bad).ok());
  using Listens = OperationTable::Listens;
  ASSERT_EQ(table_.Listen(good, outcomes.listener(), false), Listens::kYes);
  ASSERT_EQ(table_.Listen(bad, outcomes.listener(), false), Listens::kYes);
  EXPECT_EQ(table_.Listen(bad, outcomes.listener(), true), Listens::kHasListener);
  table_.Finish(good, Status::Ok());
  table_.Finish(bad, InvalidArgumentError("no"));
  EXPECT_EQ(outcomes.texts, (std::vector<std::string>{"ok", "ok"})) << "the handle has the status";
  EXPECT_EQ(table_.Find(bad->handle), bad);
  EXPECT_EQ(bad->status.message(), "no");
  EXPECT_TRUE(unseen_.empty());
  EXPECT_EQ(table_.Listen(bad, outcomes.listener(), true), Listens::kIsDone);
  table_.Recycle(good);
  Operation* const again = Make("c");
  ASSERT_EQ(again, good);
  ASSERT_TRUE(Add(again).ok());
  table_.Finish(again, Status::Ok());
  EXPECT_EQ(outcomes.texts.size(), 2u) << "a record forgets its listener";
}

TEST_F(OperationTableTest, ADetachedOperationKeepsItsOwnerAndItsNameUntilItIsDone) {
  Outcomes outcomes;
  int tensor = 0;
  Operation* const operation = Make("a");
  operation->owner = &tensor;
  ASSERT_TRUE(Add(operation).ok());
  const int64_t handle = operation->handle;
  ASSERT_EQ(table_.Listen(operation, outcomes.listener(), true), OperationTable::Listens::kYes);
  EXPECT_EQ(table_.Find(handle), nullptr);
  EXPECT_EQ(Add(Make("a")).code(), StatusCode::kDuplicateName);
  std::vector<void*> owners;
  table_.TakeOwners(&owners);
  EXPECT_TRUE(owners.empty());
  table_.FailAll({StatusCode::kPeerLost, "rank 1 is gone"});
  EXPECT_EQ(outcomes.texts, std::vector<std::string>{"rank 1 is gone"});
  EXPECT_TRUE(unseen_.empty()) << "the listener has seen it";
  table_.TakeOwners(&owners);
  EXPECT_EQ(owners, std::vector<void*>{&tensor});
  EXPECT_EQ(freed_, 1);
  EXPECT_TRUE(Add(Make("a")).ok());
}

TEST_F(OperationTableTest, AReleasedOperationWithAListenerIsNotADetachedOne) {
  Outcomes outcomes;
  Operation* const operation = Launch(Make("a"));
  ASSERT_EQ(table_.Listen(operation, outcomes.listener(), false), OperationTable::Listens::kYes);
  ASSERT_TRUE(table_.Release(operation, &results_));
  table_.Finish(operation, Status::Ok());
  EXPECT_EQ(outcomes.texts, std::vector<std::string>{"ok"});
  Operation* const next = Launch(Make("b"));
  EXPECT_TRUE(table_.Release(next, &results_)) << "the count of detached operations is right";
}

// Otherwise the ranks would give later operations different names, because one device is done before another.
TEST_F(OperationTableTest, AnAutomaticNumberIsFreeOnceTheHandleIsConsumed) {
  Operation* const zero = Launch(Make(""));
  Operation* const one = Launch(Make(""));
  EXPECT_EQ(one->request.signature.name, "allreduce.noname.1") << "0 is launched, but its handle is not consumed";
  ASSERT_TRUE(table_.Release(zero, &results_));
  Operation* const again = Make("");
  ASSERT_TRUE(Add(again).ok());
  EXPECT_EQ(again->request.signature.name, "allreduce.noname.0") << "although the device is not done";
}

}  // namespace
}  // namespace horocache::runtime
