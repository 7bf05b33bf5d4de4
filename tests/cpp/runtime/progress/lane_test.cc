// The queue of launched plans of a lane, with a backend whose collectives do what the test says.
#include "runtime/progress/lane.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace horocache::runtime {
namespace {

// The next answers of a collective.
struct Script {
  bool launched = false;
  bool done = false;
  bool alive = false;  // it is under way
  std::shared_ptr<const cuda::Event> on_device = std::make_shared<const cuda::Event>();
  Status status;
  data::VariableOutput* output = nullptr;  // where the collective gets the memory for its result
};

class ScriptedTask : public data::CollectiveTask {
 public:
  explicit ScriptedTask(Script* script) : script_(*script) { script_.alive = true; }
  ~ScriptedTask() override { script_.alive = false; }
  bool Test() override { return script_.done; }
  Status status() const override { return script_.status; }
  bool progressed() const override { return false; }
  bool launched() const override { return script_.launched; }
  int queued() const override { return 10; }
  std::shared_ptr<const cuda::Event> on_device() const override { return script_.on_device; }

 private:
  Script& script_;
};

class ScriptedBackend : public data::Backend {
 public:
  const control::BackendTraits& traits() const override { return traits_; }
  Status Supports(const data::Collective&) const override {
    return scripts.size() == refuses_at ? UnsupportedError("refused") : Status::Ok();
  }
  std::unique_ptr<data::CollectiveTask> Start(data::Collective collective) override {
    scripts.push_back(std::make_unique<Script>());
    scripts.back()->output = collective.output;
    return std::make_unique<ScriptedTask>(scripts.back().get());
  }
  const data::DataCounters& counters() const override { return counters_; }
  Status broken() const override { return why_broken; }

  std::vector<std::unique_ptr<Script>> scripts;  // of the collectives that have been started
  Status why_broken;
  size_t refuses_at = 1'000'000;  // the number of this collective

 private:
  const control::BackendTraits traits_{.name = "scripted", .algorithms = {"plain"}};
  data::DataCounters counters_;
};

class LaneTest : public ::testing::Test {
 protected:
  // Queues an operation that is not fused with others.
  Operation* Enqueue(const std::string& name, wire::Op op = wire::Op::kAllreduce, int tensors = 1) {
    Operation* const operation = table_.New();
    auto signature = std::make_shared<wire::Signature>();
    signature->op = op;
    signature->name = name;
    for (int i = 0; i < tensors; ++i) signature->tensors.push_back({name, DType::kFloat32, {1}});
    operation->request.signature = *signature;
    operation->tensors.assign(static_cast<size_t>(tensors), {data_, data_, 1, 1});
    bool first = false;
    EXPECT_TRUE(table_.Add(operation, 0, &first).ok());
    control::Plan plan;
    plan.op = op;
    control::PlanItem item;
    item.op = OperationTable::IdOf(operation);
    item.signature = std::move(signature);
    item.num_tensors = tensors;
    item.chosen_by = wire::ChosenBy::kRule;
    plan.items.push_back(std::move(item));
    lane_.Enqueue(&plan);
    return operation;
  }
  void StepUntilStill() {
    while (lane_.Step()) {
    }
  }
  Script& script(size_t i) { return *backend_.scripts.at(i); }
  size_t started() const { return backend_.scripts.size(); }

  std::byte data_[4] = {};
  ScriptedBackend backend_;
  const control::RankNames names_{};
  observe::FlightRecorder recorder_;
  Metrics metrics_{1};
  OperationTable table_{&recorder_, &metrics_, {}};
  const FaultInjector faults_{};
  const std::shared_ptr<observe::Timeline> timeline_ = observe::Timeline::Make([](const std::string&) {});
  Lane lane_{&backend_, 0, &names_, &table_, &metrics_, &faults_, timeline_.get()};
};

TEST_F(LaneTest, AnOperationOfTheHostKeepsTheNextOneWaiting) {
  Enqueue("a");
  Enqueue("b");
  StepUntilStill();
  EXPECT_EQ(started(), 1u);
  script(0).done = true;
  StepUntilStill();
  EXPECT_EQ(started(), 2u);
}

// ---- results in memory that the caller gives

TEST_F(LaneTest, AResultIsStoredInTheGivenTensor) {
  std::byte place[40] = {};
  Operation* const a = Enqueue("a", wire::Op::kAllgather);
  a->tensors[0].output = place;
  a->tensors[0].output_count = 10;
  StepUntilStill();
  EXPECT_TRUE(script(0).output->keeps_gaps);
  EXPECT_EQ(script(0).output->allocate(40).value(), place);
  script(0).output->rows = {10};
  script(0).done = true;
  StepUntilStill();
  ASSERT_TRUE(IsDone(*a) && a->status.ok()) << a->status.ToString();
  ASSERT_EQ(a->results.size(), 1u);
  EXPECT_EQ(a->results[0].bytes, nullptr) << "the caller has it";
  EXPECT_EQ(a->results[0].shape, std::vector<int64_t>{10});
  EXPECT_EQ(a->results[0].rows, std::vector<int64_t>{10});
}

TEST_F(LaneTest, AResultWithoutAGivenTensorIsAllocatedAndItsGapsAreZero) {
  Operation* const a = Enqueue("a", wire::Op::kAllgather);
  a->allocate_results = true;
  StepUntilStill();
  EXPECT_FALSE(script(0).output->keeps_gaps);
  std::byte* const memory = script(0).output->allocate(40).value();
  script(0).done = true;
  StepUntilStill();
  ASSERT_EQ(a->results.size(), 1u);
  EXPECT_EQ(a->results[0].bytes.get(), memory);
  EXPECT_EQ(a->results[0].size_bytes, 40);
}

TEST_F(LaneTest, AGivenTensorThatIsTooSmallFailsItsOperationAlone) {
  std::byte place[8] = {};
  Operation* const a = Enqueue("a", wire::Op::kAllgather, 2);
  a->tensors[0].output = place;
  a->tensors[0].output_count = 2;
  Operation* const b = Enqueue("b");
  StepUntilStill();
  const auto memory = script(0).output->allocate(12);
  ASSERT_TRUE(memory.ok()) << "the other ranks count on this one";
  EXPECT_NE(*memory, place);
  script(0).done = true;
  StepUntilStill();
  ASSERT_EQ(started(), 2u) << "the group goes on";
  EXPECT_EQ(script(1).output->allocate(0).ok(), true) << "no rows need no place";
  script(1).done = true;
  StepUntilStill();
  EXPECT_TRUE(IsDone(*a));
  EXPECT_EQ(a->status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(a->status.message(),
            "allgather 'a': the result has 12 bytes, and the tensor that rank 0 gives for it has 8; give it a larger "
            "one, or none");
  EXPECT_TRUE(a->results.empty());
  script(2).done = true;
  StepUntilStill();
  EXPECT_TRUE(IsDone(*b) && b->status.ok()) << b->status.ToString();
}

// The task's own error is the operation's, and the next operation does not inherit the misfit.
TEST_F(LaneTest, AMisfitOfATaskThatFailedIsForgotten) {
  Operation* const a = Enqueue("a", wire::Op::kAllgather);
  Operation* const b = Enqueue("b");
  StepUntilStill();
  EXPECT_TRUE(script(0).output->allocate(12).ok());
  script(0).status = {StatusCode::kMismatch, "rows differ"};
  script(0).done = true;
  StepUntilStill();
  EXPECT_EQ(a->status.code(), StatusCode::kMismatch);
  script(1).done = true;
  StepUntilStill();
  EXPECT_TRUE(IsDone(*b) && b->status.ok()) << b->status.ToString();
}

TEST_F(LaneTest, TheLogHasWhatRanAndWhatHasChosenIt) {
  timeline_->log().Start(10);
  Enqueue("a", wire::Op::kAllgather);
  StepUntilStill();
  EXPECT_TRUE(script(0).output->allocate(12).ok());
  script(0).done = true;
  StepUntilStill();
  uint64_t lost = 0;
  const auto records = timeline_->log().Take(&lost);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].name + " " + records[0].op + " " + records[0].backend + "/" + records[0].algorithm + " " +
                records[0].chosen_by + " " + records[0].dtype + records[0].reduce_op,
            "a allgather scripted/plain rule float32");
  EXPECT_EQ(records[0].tensors, 1);
  EXPECT_EQ(records[0].fused, 1u);
  EXPECT_NE(records[0].error.find("has 12 bytes"), std::string::npos) << records[0].error;
  EXPECT_GT(records[0].started_ns, 0);
  EXPECT_GE(records[0].ended_ns, records[0].started_ns);
}

TEST_F(LaneTest, ALaunchedOperationMakesRoomForTheNext) {
  Operation* const a = Enqueue("a");
  Operation* const b = Enqueue("b");
  StepUntilStill();
  script(0).launched = true;
  StepUntilStill();
  EXPECT_EQ(started(), 2u);
  EXPECT_TRUE(Reached(*a, OperationState::kLaunched));
  EXPECT_FALSE(IsDone(*a) || Reached(*b, OperationState::kLaunched));
  EXPECT_EQ(a->on_device, script(0).on_device);
  EXPECT_EQ(lane_.Running(), a) << "reports name the oldest";
  script(0).done = true;
  StepUntilStill();
  EXPECT_TRUE(IsDone(*a) && !IsDone(*b));
  EXPECT_EQ(lane_.Running(), b);
}

TEST_F(LaneTest, LaunchedOperationsEndInTheirOrder) {
  std::vector<Operation*> operations;
  for (const char* name : {"a", "b", "c"}) operations.push_back(Enqueue(name));
  for (size_t i = 0; i < operations.size(); ++i) {
    StepUntilStill();
    script(i).launched = true;
  }
  StepUntilStill();
  script(1).done = script(2).done = true;
  StepUntilStill();
  for (const Operation* operation : operations) EXPECT_FALSE(IsDone(*operation));
  script(0).done = true;
  StepUntilStill();
  for (const Operation* operation : operations) EXPECT_TRUE(IsDone(*operation));
  EXPECT_TRUE(lane_.idle());
  EXPECT_EQ(lane_.last_done(), "c");
}

TEST_F(LaneTest, TheTensorsOfAGroupAreLaunchedBehindEachOther) {
  Operation* const a = Enqueue("a", wire::Op::kAllgather, 3);
  Operation* const b = Enqueue("b");
  for (size_t i = 0; i < 3; ++i) {
    StepUntilStill();
    EXPECT_EQ(started(), i + 1);
    EXPECT_FALSE(Reached(*a, OperationState::kLaunched));
    script(i).launched = true;
  }
  StepUntilStill();
  EXPECT_EQ(started(), 4u);
  EXPECT_TRUE(Reached(*a, OperationState::kLaunched));
  EXPECT_EQ(a->on_device, script(2).on_device);
  EXPECT_EQ(a->results.size(), 3u) << "a caller that goes on takes them";
  script(1).done = script(2).done = script(3).done = true;
  StepUntilStill();
  EXPECT_FALSE(IsDone(*a) || IsDone(*b));
  script(0).done = true;
  StepUntilStill();
  EXPECT_TRUE(IsDone(*a) && IsDone(*b));
  EXPECT_TRUE(lane_.idle());
}

TEST_F(LaneTest, AGroupWhoseLastTensorTheHostHasDoneWaitsForTheOthersOnTheDevice) {
  Operation* const a = Enqueue("a", wire::Op::kAllgather, 2);
  StepUntilStill();
  script(0).launched = true;
  StepUntilStill();
  script(1).done = true;
  StepUntilStill();
  EXPECT_TRUE(Reached(*a, OperationState::kLaunched) && !IsDone(*a));
  EXPECT_EQ(a->on_device, script(0).on_device);
  script(0).done = true;
  StepUntilStill();
  EXPECT_TRUE(IsDone(*a));
}

TEST_F(LaneTest, AGroupWhoseLastTensorFailsEndsWhenTheDeviceIsDoneWithTheOthers) {
  Operation* const a = Enqueue("a", wire::Op::kAllgather, 2);
  Operation* const b = Enqueue("b");
  StepUntilStill();
  script(0).launched = true;
  StepUntilStill();
  script(1).done = true;
  script(1).status = InvalidArgumentError("no");
  StepUntilStill();
  EXPECT_FALSE(Reached(*a, OperationState::kLaunched)) << "it has failed";
  EXPECT_EQ(started(), 3u) << "the next operation may be launched";
  script(0).done = true;
  StepUntilStill();
  EXPECT_TRUE(IsDone(*a) && !IsDone(*b));
  EXPECT_NE(a->status.message().find("'a'"), std::string::npos) << a->status.message();
}

TEST_F(LaneTest, AGroupWhoseLastTensorIsRefusedEndsWhenTheDeviceIsDoneWithTheOthers) {
  Operation* const a = Enqueue("a", wire::Op::kAllgather, 2);
  backend_.refuses_at = 1;
  StepUntilStill();
  script(0).launched = true;
  StepUntilStill();
  EXPECT_FALSE(Reached(*a, OperationState::kLaunched) || lane_.idle());
  backend_.refuses_at = 100;
  Operation* const b = Enqueue("b");
  StepUntilStill();
  script(1).launched = script(1).done = true;
  StepUntilStill();
  EXPECT_FALSE(IsDone(*a) || IsDone(*b));
  script(0).done = true;
  StepUntilStill();
  EXPECT_EQ(a->status.code(), StatusCode::kUnsupported);
  EXPECT_TRUE(IsDone(*b) && b->status.ok());
}

TEST_F(LaneTest, TheTensorsOfGroupsCountInTheDevicesQueue) {
  for (const char* name : {"a", "b", "c"}) Enqueue(name, wire::Op::kAllgather, 30);
  for (size_t i = 0; i < 90; ++i) {
    StepUntilStill();
    if (started() <= i) break;
    script(i).launched = true;
  }
  EXPECT_EQ(started(), 51u);
  script(0).done = true;  // of the first group
  StepUntilStill();
  EXPECT_EQ(started(), 52u);
}

TEST_F(LaneTest, FailGivesUpAllTensorsOfAGroup) {
  Operation* const a = Enqueue("a", wire::Op::kAllgather, 3);
  StepUntilStill();
  script(0).launched = true;
  StepUntilStill();
  lane_.Fail({StatusCode::kPeerLost, "rank 1 is gone"}, false);
  EXPECT_EQ(a->status.code(), StatusCode::kPeerLost);
  EXPECT_FALSE(script(0).alive || script(1).alive);
}

// Pieces of one group may go different ways.
TEST_F(LaneTest, AnOperationOfTheHostEndsBehindTheLaunchedOnes) {
  Operation* const a = Enqueue("a");
  Operation* const b = Enqueue("b");
  StepUntilStill();
  script(0).launched = true;
  StepUntilStill();
  script(1).done = true;
  StepUntilStill();
  EXPECT_FALSE(IsDone(*a) || IsDone(*b));
  script(0).done = true;
  StepUntilStill();
  EXPECT_TRUE(IsDone(*a) && IsDone(*b));
}

TEST_F(LaneTest, AnErrorOfALaunchedOperationIsItsOwn) {
  Operation* const a = Enqueue("a");
  Operation* const b = Enqueue("b");
  StepUntilStill();
  script(0).launched = true;
  StepUntilStill();
  script(1).launched = script(1).done = true;
  script(0).done = true;
  script(0).status = InvalidArgumentError("no");
  StepUntilStill();
  EXPECT_NE(a->status.message().find("'a'"), std::string::npos) << a->status.message();
  EXPECT_TRUE(b->status.ok());
  EXPECT_TRUE(lane_.TakeFault().ok());
}

TEST_F(LaneTest, ABrokenBackendIsAFaultOfTheRank) {
  Enqueue("a");
  StepUntilStill();
  script(0).launched = true;
  StepUntilStill();
  backend_.why_broken = {StatusCode::kAborted, "broken"};
  script(0).status = backend_.why_broken;
  script(0).done = true;
  StepUntilStill();
  EXPECT_EQ(lane_.TakeFault().message(), "broken");
}

TEST_F(LaneTest, FailEndsWhatIsLaunchedAndWhatWaits) {
  std::vector<Operation*> operations;
  for (const char* name : {"a", "b", "c"}) operations.push_back(Enqueue(name));
  StepUntilStill();
  script(0).launched = true;
  StepUntilStill();
  lane_.Fail({StatusCode::kPeerLost, "rank 1 is gone"}, false);
  for (const Operation* operation : operations) {
    EXPECT_TRUE(IsDone(*operation));
    EXPECT_EQ(operation->status.code(), StatusCode::kPeerLost);
  }
  EXPECT_FALSE(script(0).alive || script(1).alive);
  EXPECT_TRUE(lane_.idle());
  Enqueue("d");  // the lane works on, which its metrics must see
  StepUntilStill();
  EXPECT_EQ(started(), 3u);
}

TEST_F(LaneTest, ALimitedNumberIsLaunched) {
  constexpr size_t kMany = 200;
  for (size_t i = 0; i < kMany; ++i) Enqueue("x" + std::to_string(i));
  for (size_t i = 0; i < kMany; ++i) {
    StepUntilStill();
    if (started() <= i) break;
    script(i).launched = true;
  }
  EXPECT_EQ(started(), 51u);  // 500 entries of the device's queue, and the one that must wait
  script(0).done = true;
  StepUntilStill();
  EXPECT_EQ(started(), 52u);
}

TEST_F(LaneTest, TheClockOfALaunchedOperationBeginsWhenItIsTheOldest) {
  Enqueue("a");
  Enqueue("b");
  StepUntilStill();
  script(0).launched = true;
  StepUntilStill();
  script(1).launched = true;
  StepUntilStill();
  const int64_t before = lane_.StillSinceNs();
  script(0).done = true;
  StepUntilStill();
  EXPECT_GT(lane_.StillSinceNs(), before);
}

TEST_F(LaneTest, TheClockBeginsAnewWithEachTensorOfALaunchedGroup) {
  Enqueue("a", wire::Op::kAllgather, 2);
  for (size_t i = 0; i < 2; ++i) {
    StepUntilStill();
    script(i).launched = true;
  }
  StepUntilStill();
  const int64_t before = lane_.StillSinceNs();
  script(0).done = true;
  StepUntilStill();
  EXPECT_GT(lane_.StillSinceNs(), before);
}

}  // namespace
}  // namespace horocache::runtime
