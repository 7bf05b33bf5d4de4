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
  Status status;
};

class ScriptedTask : public data::CollectiveTask {
 public:
  explicit ScriptedTask(Script* script) : script_(*script) { script_.alive = true; }
  ~ScriptedTask() override { script_.alive = false; }
  bool Test() override { return script_.done; }
  Status status() const override { return script_.status; }
  bool progressed() const override { return false; }
  bool launched() const override { return script_.launched; }

 private:
  Script& script_;
};

class ScriptedBackend : public data::Backend {
 public:
  const control::BackendTraits& traits() const override { return traits_; }
  Status Supports(const data::Collective&) const override { return Status::Ok(); }
  std::unique_ptr<data::CollectiveTask> Start(data::Collective) override {
    scripts.push_back(std::make_unique<Script>());
    return std::make_unique<ScriptedTask>(scripts.back().get());
  }
  const data::DataCounters& counters() const override { return counters_; }
  Status broken() const override { return why_broken; }

  std::vector<std::unique_ptr<Script>> scripts;  // of the collectives that have been started
  Status why_broken;

 private:
  const control::BackendTraits traits_{};
  data::DataCounters counters_;
};

class LaneTest : public ::testing::Test {
 protected:
  // Queues an allreduce of its own.
  Operation* Enqueue(const std::string& name, wire::Op op = wire::Op::kAllreduce) {
    Operation* const operation = table_.New();
    auto signature = std::make_shared<wire::Signature>();
    signature->op = op;
    signature->name = name;
    signature->tensors = {{name, DType::kFloat32, {1}}};
    operation->request.signature = *signature;
    operation->tensors = {{data_, data_, 1, 1}};
    bool first = false;
    EXPECT_TRUE(table_.Add(operation, 0, &first).ok());
    control::Plan plan;
    plan.op = op;
    control::PlanItem item;
    item.op = OperationTable::IdOf(operation);
    item.signature = std::move(signature);
    item.num_tensors = 1;
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

TEST_F(LaneTest, ALaunchedOperationMakesRoomForTheNext) {
  Operation* const a = Enqueue("a");
  Operation* const b = Enqueue("b");
  StepUntilStill();
  script(0).launched = true;
  StepUntilStill();
  EXPECT_EQ(started(), 2u);
  EXPECT_TRUE(Reached(*a, OperationState::kLaunched));
  EXPECT_FALSE(IsDone(*a) || Reached(*b, OperationState::kLaunched));
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
  lane_.Fail({StatusCode::kPeerLost, "rank 1 is gone"});
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
  EXPECT_EQ(started(), 129u);  // 128 and the one that cannot make room
  script(0).done = true;
  StepUntilStill();
  EXPECT_EQ(started(), 130u);
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

}  // namespace
}  // namespace horocache::runtime
