// The staged backend apart from its collectives, which the tests of all backends check.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "data/numbers.h"
#include "data/ranks.h"

namespace horocache::data {
namespace {

using cuda::testing::DeviceMemory;
using cuda::testing::FakeDriver;
using cuda::testing::HeldStream;
using testing::Bytes;
using testing::OnDevice;
using testing::RankData;
using testing::Ranks;

// Ready when the stream of the program has come to it.
class StreamEvent : public Event {
 public:
  explicit StreamEvent(cuda::StreamHandle stream) : device_(FakeDriver::Get().device()) {
    const cuda::Device::Scope scope(*device_);
    auto event = cuda::Event::Make(device_);
    EXPECT_TRUE(event.ok() && event->Record(stream).ok());
    event_ = std::move(*event);
  }
  bool Ready() override {
    const cuda::Device::Scope scope(*device_);
    return *event_.Happened();
  }

 private:
  const std::shared_ptr<cuda::Device> device_;
  cuda::Event event_;
};

RankData Floats(int64_t count, wire::DeviceClass device_class = wire::DeviceClass::kCuda) {
  RankData data;
  data.collective.device_class = device_class;
  data.inputs.push_back(testing::RandomBits(static_cast<size_t>(count) * 4, 1));
  data.outputs.emplace_back(static_cast<size_t>(count) * 4);
  return data;
}

TEST(StagedTest, WaitsForTheStreamOfTheProgram) {
  Ranks ranks(1);
  HeldStream held;
  StreamEvent ready(held.handle());
  RankData data = Floats(100);
  testing::Bind(&data);
  Collective collective = data.collective;
  OnDevice tensors(&collective);
  collective.ready = &ready;
  const auto task = ranks.backend(0, "staged").Start(collective);
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(task->Test());
  EXPECT_TRUE(task->must_poll());
  EXPECT_EQ(task->phase(), observe::Phase::kWaitForData);
  EXPECT_NE(task->Details().find("CUDA device 0 has not come to the tensor yet"), std::string::npos);
  held.Release();
  ASSERT_TRUE(testing::Finish(task.get()).ok());
  tensors.Fetch();
  EXPECT_TRUE(data.outputs[0] == data.inputs[0]);
}

TEST(StagedTest, RunsInOrderWithOperationsOnTheHost) {
  Ranks ranks(1);
  HeldStream held;
  StreamEvent ready(held.handle());
  RankData first = Floats(10), second = Floats(10, wire::DeviceClass::kCpu);
  testing::Bind(&first);
  testing::Bind(&second);
  Collective collective = first.collective;
  OnDevice tensors(&collective);
  collective.ready = &ready;
  Backend& backend = ranks.backend(0, "staged");
  const auto on_device = backend.Start(collective);
  const auto on_host = backend.Start(second.collective);
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(on_host->Test());
  held.Release();
  ASSERT_TRUE(testing::Finish(on_host.get()).ok());
  EXPECT_TRUE(on_device->Test()) << "an operation overtook an earlier one";
  EXPECT_TRUE(second.outputs[0] == second.inputs[0]);
}

TEST(StagedTest, OperationsOnTheHostPassThrough) {
  Ranks ranks(1);
  const uint64_t copies = FakeDriver::Get().Calls("cuMemcpyDtoHAsync_v2");
  std::vector<RankData> data;
  data.push_back(Floats(1000, wire::DeviceClass::kCpu));
  testing::Bind(&data[0]);
  for (const Status& status : testing::RunInTurn(&ranks, "staged", &data)) EXPECT_TRUE(status.ok());
  EXPECT_TRUE(data[0].outputs[0] == data[0].inputs[0]);
  EXPECT_EQ(FakeDriver::Get().Calls("cuMemcpyDtoHAsync_v2"), copies);
}

TEST(StagedTest, CountsAnOperationOnceAndItsCopies) {
  Ranks ranks(1, testing::SmallTiles());
  std::vector<RankData> data;
  data.push_back(Floats(1024));  // four tiles
  testing::Bind(&data[0]);
  for (const Status& status : testing::RunInTurn(&ranks, "staged", &data)) EXPECT_TRUE(status.ok());
  const DataCounters& counters = ranks.backend(0, "staged").counters();
  EXPECT_EQ(counters.operations, 1u);
  EXPECT_EQ(counters.payload_bytes, 4096u);
  // In place in the slots, so that the host copies nothing.
  EXPECT_EQ(counters.bytes_copied, 2u * 4096u);
}

TEST(StagedTest, AllocatesNothingInASteadyState) {
  Ranks ranks(1, testing::SmallTiles());
  const auto run = [&ranks] {
    std::vector<RankData> data;
    data.push_back(Floats(5000));
    testing::Bind(&data[0]);
    for (const Status& status : testing::RunInTurn(&ranks, "staged", &data)) EXPECT_TRUE(status.ok());
  };
  run();
  const auto made = [] {
    const FakeDriver& fake = FakeDriver::Get();
    return fake.Calls("cuEventCreate") + fake.Calls("cuMemHostAlloc") + fake.Calls("cuStreamCreateWithPriority");
  };
  const uint64_t before = made();
  for (int i = 0; i < 5; ++i) run();
  EXPECT_EQ(made(), before);
}

TEST(StagedTest, MayBeGivenUpWhileCopiesAreUnderWay) {
  Ranks ranks(2, testing::SmallTiles());
  RankData data = Floats(5000);
  testing::Bind(&data);
  {
    Collective collective = data.collective;
    OnDevice tensors(&collective);
    const auto task = ranks.backend(0, "staged").Start(collective);
    EXPECT_FALSE(task->Test());  // the other rank does not take part
  }  // the fake ends the process where a copy uses memory that was freed
  EXPECT_EQ(ranks.backend(0, "staged").broken().code(), StatusCode::kAborted);
}

TEST(StagedTest, IsRightInManyInterleavings) {
  for (uint64_t seed = 1; seed <= testing::Interleavings(); ++seed) {
    FakeDriver::Get().Function<void(uint64_t)>("fake_gpu_reseed")(seed);
    Ranks ranks(3, testing::SmallTiles());
    std::mt19937_64 random(seed);
    for (int turn = 0; turn < 3; ++turn) {
      const auto count = static_cast<int64_t>(random() % 2000);
      std::vector<RankData> data;
      std::vector<uint32_t> expected(static_cast<size_t>(count));
      for (int r = 0; r < 3; ++r) {
        data.push_back(Floats(count));
        data.back().collective.dtype = DType::kUint32;
        data.back().inputs[0] =
            testing::RandomBits(static_cast<size_t>(count) * 4, seed * 10 + static_cast<uint64_t>(r));
        if (turn == 1) data.back().outputs.clear();  // in place
        const auto* const values = reinterpret_cast<const uint32_t*>(data.back().inputs[0].data());
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += values[i];
      }
      for (RankData& mine : data) testing::Bind(&mine);
      for (const Status& status : testing::RunInTurn(&ranks, "staged", &data, 1000000, seed % 2 == 0))
        ASSERT_TRUE(status.ok());
      for (const RankData& mine : data) {
        const Bytes& result = mine.outputs.empty() ? mine.inputs[0] : mine.outputs[0];
        ASSERT_EQ(std::memcmp(result.data(), expected.data(), result.size()), 0) << "seed " << seed << " turn " << turn;
      }
    }
  }
}

TEST(StagedTest, DoesNotSeemToMoveWhileAnotherRankIsAway) {
  Ranks ranks(2, testing::SmallTiles());
  std::vector<RankData> data;
  for (int r = 0; r < 2; ++r) data.push_back(Floats(200'000));  // 782 tiles
  std::vector<std::unique_ptr<OnDevice>> tensors;
  std::vector<std::unique_ptr<CollectiveTask>> tasks;
  for (int r = 0; r < 2; ++r) {
    testing::Bind(&data[static_cast<size_t>(r)]);
    Collective collective = data[static_cast<size_t>(r)].collective;
    tensors.push_back(std::make_unique<OnDevice>(&collective));
    tasks.push_back(ranks.backend(r, "staged").Start(collective));
  }
  for (int turn = 0; turn < 60; ++turn) {
    for (const auto& task : tasks) ASSERT_FALSE(task->Test()) << "not enough tiles";
  }
  int still = 0;
  for (int turn = 0; turn < 10000 && still < 100; ++turn) {
    ASSERT_FALSE(tasks[0]->Test());
    still = tasks[0]->progressed() ? 0 : still + 1;
  }
  EXPECT_EQ(still, 100) << "a rank that waits would run for ever";
}

Status StatusWithFault(const char* fault) {
  setenv("FAKE_GPU_FAULTS", fault, 1);
  Ranks ranks(1);
  RankData data = Floats(100);
  testing::Bind(&data);
  Collective collective = data.collective;
  OnDevice tensors(&collective);
  Backend& backend = ranks.backend(0, "staged");
  const Status status = testing::Finish(backend.Start(collective).get());
  EXPECT_EQ(backend.broken().code(), status.code()) << "the other ranks wait for this one";
  return status;
}

TEST(StagedTest, AnErrorOfTheDeviceBreaksTheBackendAndIsNamed) {
  HC_IN_NEW_PROCESS({
    const Status status = StatusWithFault("cuMemcpyDtoHAsync_v2:1:719");
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(status.message().find("rank 0: CUDA device 0: cuMemcpyDtoHAsync failed with 719"), std::string::npos)
        << status.message();
  });
}

TEST(StagedTest, NoPinnedMemoryBreaksTheBackend) {
  HC_IN_NEW_PROCESS(EXPECT_EQ(StatusWithFault("cuMemHostAlloc:1:2").code(), StatusCode::kOutOfMemory));
}

TEST(StagedTest, AnErrorOfTheHostsBackendIsTheOperations) {
  Ranks ranks(2);
  std::vector<RankData> data;
  for (const int64_t rows : {4, 4}) {
    data.push_back(Floats(rows));
    data.back().collective.op = wire::Op::kAlltoall;
    data.back().outputs.clear();
  }
  data[1].collective.splits = {1, 2};  // of 4 rows
  for (RankData& mine : data) testing::BindVariable(&mine);
  for (const Status& status : testing::RunInTurn(&ranks, "staged", &data))
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_TRUE(ranks.backend(0, "staged").broken().ok());
}

}  // namespace
}  // namespace horocache::data
