// The backend nccl on the fake NCCL. Sums are of small numbers, which are exact in every order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>

#include "cuda/stream_event.h"
#include "data/kernels/fold.h"
#include "data/numbers.h"
#include "data/ranks.h"

namespace horocache::data {
namespace {

using cuda::testing::FakeDriver;
using cuda::testing::HeldStream;
using testing::Bytes;
using testing::OnDevice;
using testing::RankData;
using testing::Ranks;
using wire::Op;
using wire::ReduceOp;

// Elements of 0, 1 or 2 in a type; 0 or 1 for bool.
Bytes SmallNumbers(DType dtype, int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) number = static_cast<float>(random() % (dtype == DType::kBool ? 2 : 3));
  Bytes result(static_cast<size_t>(count) * DTypeBytes(dtype));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const float number = numbers[i];
    std::byte* const at = result.data() + i * DTypeBytes(dtype);
    const auto put = [at](auto value) { std::memcpy(at, &value, sizeof value); };
    if (dtype == DType::kFloat64) {
      put(static_cast<double>(number));
    } else if (dtype == DType::kFloat32) {
      put(number);
    } else if (dtype == DType::kFloat16) {
      put(static_cast<uint16_t>(number == 0 ? 0 : number == 1 ? 0x3c00 : 0x4000));
    } else if (dtype == DType::kBfloat16) {
      put(static_cast<uint16_t>(number == 0 ? 0 : number == 1 ? 0x3f80 : 0x4000));
    } else {
      const auto whole = static_cast<uint64_t>(number);  // little-endian
      std::memcpy(at, &whole, std::min(DTypeBytes(dtype), sizeof whole));
    }
  }
  return result;
}

Bytes Expected(const std::vector<RankData>& data, size_t tensor) {
  const Collective& c = data[0].collective;
  std::vector<const std::byte*> inputs;
  for (const RankData& mine : data) inputs.push_back(mine.inputs[tensor].data());
  Bytes result(data[0].inputs[tensor].size());
  FoldCall call;
  call.inputs = inputs.data();
  call.num_inputs = static_cast<int>(inputs.size());
  call.count = static_cast<int64_t>(result.size() / DTypeBytes(c.dtype));
  call.output = result.data();
  call.scaling = MakeScaling(c.dtype, c.reduce_op, c.prescale, c.postscale, static_cast<int>(data.size()));
  Fold((*FindKernels("scalar"))->Find(c.dtype, c.reduce_op), c.dtype, call);
  return result;
}

// Tensors of `counts` elements on every rank, with memory for the results.
std::vector<RankData> OnRanks(int ranks, const Collective& collective, const std::vector<int64_t>& counts,
                              uint64_t seed) {
  std::vector<RankData> data(static_cast<size_t>(ranks));
  for (RankData& mine : data) {
    mine.collective = collective;
    mine.collective.device_class = wire::DeviceClass::kCuda;
    for (const int64_t count : counts) {
      mine.inputs.push_back(SmallNumbers(collective.dtype, count, ++seed));
      mine.outputs.emplace_back(mine.inputs.back().size());
    }
    testing::Bind(&mine);
  }
  return data;
}

// Of the program's stream, as an operation has it.
class ProgramEvent : public Event {
 public:
  explicit ProgramEvent(cuda::StreamHandle stream) : device_(FakeDriver::Get().device()) {
    auto made = cuda::StreamEvent::Record(device_, stream);
    EXPECT_TRUE(made.ok());
    event_.emplace(std::move(*made));
  }
  bool Ready() override { return event_->Happened(); }
  Status HoldBack(cuda::Stream* stream, bool* waits) override {
    *waits = true;
    return event_->HoldBack(stream);
  }

 private:
  const std::shared_ptr<cuda::Device> device_;
  std::optional<cuda::StreamEvent> event_;
};

uint64_t Calls(const char* function) { return FakeDriver::Get().Calls(function); }

TEST(NcclBackendTest, ReducesEveryTypeByEveryOperation) {
  Ranks ranks(2);
  uint64_t seed = 1;
  for (const DType dtype : testing::AllDTypes()) {
    for (const ReduceOp op : testing::AllReduceOps()) {
      if (!CheckFold(dtype, op, {}).ok() || op == ReduceOp::kAdasum) continue;
      for (const Op collective_op : {Op::kAllreduce, Op::kReduce}) {
        Collective collective;
        collective.op = collective_op;
        collective.root = collective_op == Op::kReduce ? 1 : -1;
        collective.dtype = dtype;
        collective.reduce_op = op;
        std::vector<RankData> data = OnRanks(2, collective, {5, 0, 300}, seed += 100);
        for (const Status& status : testing::RunInTurn(&ranks, "nccl", &data)) ASSERT_TRUE(status.ok());
        for (size_t r = collective_op == Op::kReduce ? 1 : 0; r < data.size(); ++r) {
          for (size_t i = 0; i < 3; ++i) {
            ASSERT_TRUE(data[r].outputs[i] == Expected(data, i))
                << DTypeName(dtype) << " " << wire::ReduceOpName(op) << " tensor " << i << " of rank " << r;
          }
        }
      }
    }
  }
}

TEST(NcclBackendTest, AppliesFactorsOnce) {
  Ranks ranks(2);
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
      Collective collective;
      collective.dtype = dtype;
      collective.reduce_op = op;
      collective.prescale = 0.5;
      collective.postscale = 8.0;
      std::vector<RankData> data = OnRanks(2, collective, {100}, 7);
      for (const Status& status : testing::RunInTurn(&ranks, "nccl", &data)) ASSERT_TRUE(status.ok());
      for (const RankData& mine : data)
        ASSERT_TRUE(mine.outputs[0] == Expected(data, 0)) << DTypeName(dtype) << " " << wire::ReduceOpName(op);
    }
  }
}

TEST(NcclBackendTest, AGroupIsOneCallAndTwoEventsAndASteadyStateMakesNothing) {
  Ranks ranks(2);
  const auto run = [&ranks] {
    std::vector<RankData> data = OnRanks(2, {}, {10, 20, 30}, 1);
    for (const Status& status : testing::RunInTurn(&ranks, "nccl", &data)) ASSERT_TRUE(status.ok());
  };
  run();
  const std::vector<const char*> names = {
      "ncclGroupEnd",          "ncclAllReduce", "cuEventRecord", "cuEventCreate", "cuStreamCreateWithPriority",
      "ncclCommInitRankConfig"};
  std::vector<uint64_t> before;
  for (const char* name : names) before.push_back(Calls(name));
  for (int i = 0; i < 5; ++i) run();
  const std::vector<uint64_t> expected = {10, 30, 10, 0, 0, 0};
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(Calls(names[i]) - before[i], expected[i]) << names[i];
}

TEST(NcclBackendTest, IsLaunchedBeforeItsTensorIsThere) {
  Ranks ranks(1);
  std::vector<RankData> first = OnRanks(1, {}, {10}, 1);
  ASSERT_TRUE(testing::RunInTurn(&ranks, "nccl", &first)[0].ok());  // connects
  HeldStream held;
  ProgramEvent ready(held.handle());
  std::vector<RankData> data = OnRanks(1, {}, {100}, 1);
  Collective collective = data[0].collective;
  OnDevice tensors(&collective);
  collective.ready = &ready;
  const auto task = ranks.backend(0, "nccl").Start(collective);
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(task->Test());
  EXPECT_TRUE(task->launched() && task->must_poll());
  EXPECT_EQ(task->phase(), observe::Phase::kWaitForData);
  EXPECT_NE(task->Details().find("CUDA device 0 has not come to the tensor yet"), std::string::npos);
  held.Release();
  ASSERT_TRUE(testing::Finish(task.get()).ok());
  tensors.Fetch();
  EXPECT_TRUE(data[0].outputs[0] == data[0].inputs[0]);
}

TEST(NcclBackendTest, AbandonedWorkIsOverBeforeTheOperationFails) {
  Ranks ranks(2);
  std::vector<RankData> data = OnRanks(2, {}, {10}, 1);
  for (const Status& status : testing::RunInTurn(&ranks, "nccl", &data)) ASSERT_TRUE(status.ok());
  Collective collective = data[0].collective;
  {
    OnDevice tensors(&collective);
    Backend& backend = ranks.backend(0, "nccl");
    const auto task = backend.Start(collective);  // the other rank does not take part
    for (int i = 0; i < 100; ++i) ASSERT_FALSE(task->Test());
    const uint64_t aborts = Calls("ncclCommAbort");
    backend.Abandon({StatusCode::kPeerLost, "rank 1 is gone"});
    EXPECT_TRUE(backend.AwaitDevices().ok());
    EXPECT_EQ(Calls("ncclCommAbort"), aborts + 1);
    EXPECT_EQ(testing::Finish(task.get()).code(), StatusCode::kPeerLost);
  }  // the fake ends the process where work uses memory that was freed
  ranks.backend(1, "nccl").Abandon({StatusCode::kPeerLost, "rank 1 is gone"});
}

TEST(NcclBackendTest, MayBeGivenUpWhileItRuns) {
  Ranks ranks(2);
  std::vector<RankData> data = OnRanks(2, {}, {10}, 1);
  for (const Status& status : testing::RunInTurn(&ranks, "nccl", &data)) ASSERT_TRUE(status.ok());
  Collective collective = data[0].collective;
  {
    OnDevice tensors(&collective);
    const auto task = ranks.backend(0, "nccl").Start(collective);
    ASSERT_FALSE(task->Test());
  }
  EXPECT_EQ(ranks.backend(0, "nccl").broken().code(), StatusCode::kAborted);
  ranks.backend(1, "nccl").Abandon({StatusCode::kAborted, "rank 0 gave up"});
}

TEST(NcclBackendTest, AnErrorOfALaunchBreaksTheBackendAndIsNamed) {
  HC_IN_NEW_PROCESS({
    setenv("FAKE_GPU_FAULTS", "ncclAllReduce:1:1", 1);
    Ranks ranks(1);
    std::vector<RankData> data = OnRanks(1, {}, {10}, 1);
    const Status status = testing::RunInTurn(&ranks, "nccl", &data)[0];
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(status.message().find("rank 0: ncclAllReduce failed with 1"), std::string::npos) << status.message();
    EXPECT_EQ(ranks.backend(0, "nccl").broken().code(), StatusCode::kAborted) << "the other ranks wait for this one";
  });
}

TEST(NcclBackendTest, IsRightInManyInterleavings) {
  Ranks ranks(3);
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    FakeDriver::Get().Function<void(uint64_t)>("fake_gpu_reseed")(seed);
    std::mt19937_64 random(seed);
    Collective collective;
    collective.dtype = DType::kInt32;
    collective.reduce_op = ReduceOp::kSum;
    const auto count = static_cast<int64_t>(random() % 2000);
    std::vector<RankData> data = OnRanks(3, collective, {count, count / 2}, seed * 10);
    for (const Status& status : testing::RunInTurn(&ranks, "nccl", &data)) ASSERT_TRUE(status.ok());
    for (const RankData& mine : data) {
      for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(mine.outputs[i] == Expected(data, i)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace horocache::data
