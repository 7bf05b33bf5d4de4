// The backend nccl on the fake NCCL. Sums are of small numbers, which are exact in every order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "data/kernels/fold.h"
#include "data/numbers.h"
#include "data/ranks.h"

namespace horocache::data {
namespace {

using cuda::testing::FakeDriver;
using cuda::testing::HeldStream;
using testing::Bytes;
using testing::OnDevice;
using testing::ProgramEvent;
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

// A tensor with these numbers of rows on each rank, whose result the backend allocates.
std::vector<RankData> RowsOnRanks(const Collective& collective, const std::vector<int64_t>& rows, uint64_t seed) {
  std::vector<RankData> data(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    data[r].collective = collective;
    data[r].collective.device_class = wire::DeviceClass::kCuda;
    data[r].inputs.push_back(SmallNumbers(collective.dtype, rows[r] * collective.row_elements, seed + r));
    testing::BindVariable(&data[r]);
  }
  return data;
}

Bytes Together(const std::vector<RankData>& data) {
  Bytes all;
  for (const RankData& mine : data) all.insert(all.end(), mine.result.begin(), mine.result.end());
  return all;
}

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

TEST(NcclBackendTest, AGroupIsTwoLaunchesAndAFewCallsAndASteadyStateMakesNothing) {
  Ranks ranks(2);
  std::vector<RankData> data = OnRanks(2, {}, {10, 0, 20, 30, 2 << 20}, 1);  // the last one is too large to be packed
  std::vector<Collective> collectives = {data[0].collective, data[1].collective};
  std::vector<OnDevice> tensors;
  for (Collective& collective : collectives) tensors.emplace_back(&collective);
  const auto run = [&] {
    std::vector<std::unique_ptr<CollectiveTask>> tasks;
    for (int r = 0; r < 2; ++r) tasks.push_back(ranks.backend(r, "nccl").Start(collectives[static_cast<size_t>(r)]));
    std::vector<bool> done(2);
    while (!done[0] || !done[1]) {
      for (size_t r = 0; r < 2; ++r) done[r] = done[r] || tasks[r]->Test();
    }
    for (const auto& task : tasks) ASSERT_TRUE(task->status().ok()) << task->status().message();
  };
  run();
  const std::vector<const char*> names = {"ncclGroupEnd",         "ncclAllReduce",  "cuLaunchKernel",
                                          "cuMemcpyHtoDAsync_v2", "cuEventRecord",  "cuEventCreate",
                                          "cuMemAlloc_v2",        "cuMemHostAlloc", "ncclRedOpCreatePreMulSum"};
  std::vector<uint64_t> before;
  for (const char* name : names) before.push_back(Calls(name));
  for (int i = 0; i < 5; ++i) run();
  const std::vector<uint64_t> expected = {10, 20, 20, 0, 10, 0, 0, 0, 0};
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(Calls(names[i]) - before[i], expected[i]) << names[i];
  for (OnDevice& mine : tensors) mine.Fetch();
  for (const RankData& mine : data) {
    for (size_t i = 0; i < 5; ++i) ASSERT_TRUE(mine.outputs[i] == Expected(data, i)) << i;
  }
}

TEST(NcclBackendTest, NoRankPacksWhereOneCannot) {
  HC_IN_NEW_PROCESS({
    setenv("FAKE_GPU_FAULTS", "cuModuleLoadData:1:222", 1);  // of one of the ranks
    Ranks ranks(2);
    std::vector<RankData> data = OnRanks(2, {}, {10, 20, 30}, 1);
    for (const Status& status : testing::RunInTurn(&ranks, "nccl", &data)) EXPECT_TRUE(status.ok());
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(data[1].outputs[i] == Expected(data, i)) << i;
    EXPECT_EQ(Calls("ncclAllReduce"), 6u);
    EXPECT_EQ(Calls("cuLaunchKernel"), 0u);
  });
}

TEST(NcclBackendTest, WhatATensorIsFusedWithDoesNotChangeItsBits) {
  Ranks ranks(3);
  const auto run = [&ranks](std::vector<RankData>* data) {
    for (RankData& mine : *data) testing::Bind(&mine);
    for (const Status& status : testing::RunInTurn(&ranks, "nccl", data)) ASSERT_TRUE(status.ok());
  };
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64}) {
    for (const Op op : {Op::kAllreduce, Op::kReduce}) {
      Collective collective;
      collective.op = op;
      collective.root = op == Op::kReduce ? 2 : -1;
      collective.dtype = dtype;
      collective.reduce_op = ReduceOp::kAverage;
      collective.prescale = 0.7;
      const bool large = dtype == DType::kFloat16 && op == Op::kAllreduce;  // the last one is not packed
      std::vector<RankData> fused = OnRanks(3, collective, {100, 3, large ? 2200000 : 50}, 5);
      run(&fused);
      for (size_t i = 0; i < 3; ++i) {
        std::vector<RankData> alone = OnRanks(3, collective, {1}, 5);
        for (size_t r = 0; r < 3; ++r) {
          alone[r].inputs[0] = fused[r].inputs[i];
          alone[r].outputs[0].resize(alone[r].inputs[0].size());
        }
        run(&alone);
        for (size_t r = op == Op::kReduce ? 2 : 0; r < 3; ++r) {
          EXPECT_TRUE(alone[r].outputs[0] == fused[r].outputs[i]) << DTypeName(dtype) << " " << i << " rank " << r;
        }
      }
    }
  }
}

// Tensors that lie like the flat array on one rank only. In a window, all ranks must use it; the fake compares that.
void TestFlat(int64_t window_bytes, uint64_t launches_of_a_sum) {
  BackendOptions options;
  options.nccl.window_bytes = window_bytes;
  Ranks ranks(2, options);
  const std::vector<int64_t> counts = {3, 100, 20};  // the flat array has those of whole vectors first: 100, 20, 3
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
    Collective collective;
    collective.reduce_op = op;
    std::vector<RankData> data = OnRanks(2, collective, counts, 3);
    const std::vector<size_t> order = {1, 2, 0};
    cuda::testing::DeviceMemory flat(123 * sizeof(float));
    Bytes together;
    for (const size_t i : order) together.insert(together.end(), data[0].inputs[i].begin(), data[0].inputs[i].end());
    flat.Write(together.data());
    std::vector<Collective> collectives = {data[0].collective, data[1].collective};
    std::byte* next = flat.data();
    for (const size_t i : order) {
      collectives[0].segments[i] = {next, next, counts[i]};
      next += data[0].inputs[i].size();
    }
    OnDevice elsewhere(&collectives[1]);
    const uint64_t launched = Calls("cuLaunchKernel");
    std::vector<std::unique_ptr<CollectiveTask>> tasks;
    for (int r = 0; r < 2; ++r) tasks.push_back(ranks.backend(r, "nccl").Start(collectives[static_cast<size_t>(r)]));
    std::vector<bool> done(2);
    while (!done[0] || !done[1]) {
      for (size_t r = 0; r < 2; ++r) done[r] = done[r] || tasks[r]->Test();
    }
    for (const auto& task : tasks) ASSERT_TRUE(task->status().ok()) << task->status().message();
    // An average is multiplied where it lies, unless it is packed.
    const bool in_place = window_bytes == 0 && op == ReduceOp::kAverage;
    EXPECT_EQ(Calls("cuLaunchKernel") - launched, launches_of_a_sum + (in_place ? 1 : 0));
    flat.Read(together.data());
    elsewhere.Fetch();
    const std::byte* at = together.data();
    for (const size_t i : order) {
      const Bytes expected = Expected(data, i);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), at)) << i;
      EXPECT_TRUE(data[1].outputs[i] == expected) << i;
      at += expected.size();
    }
  }
}

TEST(NcclBackendTest, TensorsThatLieAsTheFlatArrayAreNotCopied) { TestFlat(0, 2); }
TEST(NcclBackendTest, TensorsThatLieAsTheFlatArrayAreCopiedIntoAWindow) { TestFlat(4096, 4); }

TEST(NcclBackendTest, BroadcastsGroupsOfEveryType) {
  Ranks ranks(2);
  for (const DType dtype : testing::AllDTypes()) {
    Collective collective;
    collective.op = Op::kBroadcast;
    collective.root = 1;
    collective.dtype = dtype;
    std::vector<RankData> data = OnRanks(2, collective, {3, 1, 1000}, 9);
    for (const Status& status : testing::RunInTurn(&ranks, "nccl", &data)) ASSERT_TRUE(status.ok());
    for (const RankData& mine : data) {
      for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(mine.outputs[i] == data[1].inputs[i]) << DTypeName(dtype);
    }
  }
}

TEST(NcclBackendTest, ReducescattersEvenPartsInOneCallAndOthersInOneForEach) {
  Ranks ranks(3);
  uint64_t seed = 1;
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16, DType::kInt64}) {
    for (const int64_t rows : {0, 1, 7, 30}) {
      for (const bool to_one : {false, true}) {
        Collective collective;
        collective.op = Op::kReducescatter;
        collective.dtype = dtype;
        collective.reduce_op = dtype == DType::kInt64 ? ReduceOp::kMax : ReduceOp::kSum;
        collective.row_elements = 5;
        if (to_one) collective.splits = {0, rows, 0};
        const uint64_t whole = Calls("ncclReduceScatter"), parts = Calls("ncclReduce");
        std::vector<RankData> data = RowsOnRanks(collective, {rows, rows, rows}, seed += 10);
        for (const Status& status : testing::RunInTurn(&ranks, "nccl", &data))
          ASSERT_TRUE(status.ok()) << status.message();
        const Bytes expected = Expected(data, 0);
        ASSERT_TRUE(Together(data) == expected) << DTypeName(dtype) << " " << rows;
        const bool even = rows == 30 && !to_one;
        EXPECT_EQ(Calls("ncclReduceScatter") - whole, even ? 3u : 0u) << rows;
        EXPECT_EQ(Calls("ncclReduce") > parts, rows > 0 && !even) << rows;
      }
    }
  }
}

TEST(NcclBackendTest, OperationsOnRowsMakeNothingInASteadyState) {
  Ranks ranks(2);
  const auto run = [&ranks](std::vector<int64_t> starts) {
    Collective collective;
    collective.op = Op::kAllgather;
    collective.row_elements = 10;
    collective.receive_starts = std::move(starts);
    std::vector<RankData> data = RowsOnRanks(collective, {3, 3}, 7);
    for (const Status& status : testing::RunInTurn(&ranks, "nccl", &data)) ASSERT_TRUE(status.ok());
    for (const RankData& mine : data) {
      Bytes expected = data[0].inputs[0];
      const Bytes& second = data[1].inputs[0];
      if (collective.receive_starts.empty()) {
        expected.insert(expected.end(), second.begin(), second.end());
      } else {  // the second rank's rows, one row of zeros, the first rank's rows
        expected.insert(expected.begin(), 10 * sizeof(float), std::byte{0});
        expected.insert(expected.begin(), second.begin(), second.end());
      }
      ASSERT_TRUE(mine.result == expected);
    }
  };
  const std::vector<int64_t> swapped = {4, 0};
  run(swapped);
  run({});
  const std::vector<const char*> names = {"ncclGroupEnd", "ncclAllGather", "cuMemAlloc_v2", "cuEventCreate",
                                          "cuMemcpyDtoHAsync_v2"};
  std::vector<uint64_t> before;
  for (const char* name : names) before.push_back(Calls(name));
  for (int i = 0; i < 5; ++i) {
    run({});
    run(swapped);
  }
  const std::vector<uint64_t> expected = {20, 20, 20, 0, 0};  // the test's own tensors
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(Calls(names[i]) - before[i], expected[i]) << names[i];
}

TEST(NcclBackendTest, WrongRowsFailOnAllRanksAndTheNextOperationRuns) {
  Ranks ranks(2);
  for (const int turn : {0, 1, 2}) {
    Collective collective;
    collective.op = Op::kAlltoall;
    collective.row_elements = 2;
    std::vector<RankData> data = RowsOnRanks(collective, {4, 4}, 1);
    for (RankData& mine : data) mine.collective.splits = {1, 3};
    if (turn == 0) data[1].collective.splits = {1, 2};
    // Within the limit for rows without elements, and beyond the one for these.
    if (turn == 1) data[1].collective.receive_starts = {0, int64_t{1} << 57};
    const bool wrong = turn < 2;
    for (const Status& status : testing::RunInTurn(&ranks, "nccl", &data)) {
      EXPECT_EQ(status.message().find("rank 1 submitted wrong arguments") != std::string::npos, wrong);
    }
  }
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
  EXPECT_FALSE(task->progressed());
  EXPECT_TRUE(task->launched() && task->must_poll());
  EXPECT_EQ(task->phase(), observe::Phase::kWaitForData);
  EXPECT_NE(task->Details().find("CUDA device 0 has not come to the tensor yet"), std::string::npos);
  held.Release();
  // When the tensor has come, the watch over operations that do not move begins anew.
  bool done = false, moved = false;
  while (!done && !moved) {
    done = task->Test();
    moved = task->progressed();
  }
  EXPECT_TRUE(moved);
  ASSERT_TRUE(done || testing::Finish(task.get()).ok());
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
  BackendOptions options;
  options.nccl.window_bytes = 4096;  // larger groups go without it
  Ranks ranks(3, options);
  for (uint64_t seed = 1; seed <= testing::Interleavings(); ++seed) {
    FakeDriver::Get().Function<void(uint64_t)>("fake_gpu_reseed")(seed);
    std::mt19937_64 random(seed);
    Collective collective;
    collective.dtype = DType::kInt32;
    collective.reduce_op = ReduceOp::kSum;
    const auto count = static_cast<int64_t>(random() % 2000);
    std::vector<RankData> data = OnRanks(3, collective, {count, count / 2}, seed * 10);
    for (const Status& status : testing::RunInTurn(&ranks, "nccl", &data, 1000000, seed % 2 == 0))
      ASSERT_TRUE(status.ok());
    for (const RankData& mine : data) {
      for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(mine.outputs[i] == Expected(data, i)) << "seed " << seed;
    }
  }
}

TEST(NcclBackendTest, MovesRowsRightInManyInterleavings) {
  Ranks ranks(3);
  for (uint64_t seed = 1; seed <= testing::Interleavings(); ++seed) {
    FakeDriver::Get().Function<void(uint64_t)>("fake_gpu_reseed")(seed);
    std::mt19937_64 random(seed);
    Collective collective;
    collective.op = Op::kAlltoall;
    collective.dtype = DType::kInt16;
    collective.row_elements = static_cast<int64_t>(random() % 4);
    std::vector<std::vector<int64_t>> splits(3);
    std::vector<int64_t> rows;
    for (auto& mine : splits) {
      for (int to = 0; to < 3; ++to) mine.push_back(static_cast<int64_t>(random() % 50));
      rows.push_back(mine[0] + mine[1] + mine[2]);
    }
    std::vector<RankData> data = RowsOnRanks(collective, rows, seed * 10);
    for (size_t r = 0; r < 3; ++r) {
      data[r].collective.rows = rows[r];
      data[r].collective.splits = splits[r];
    }
    for (const Status& status : testing::RunInTurn(&ranks, "nccl", &data)) ASSERT_TRUE(status.ok()) << status.message();
    for (size_t to = 0; to < 3; ++to) {
      Bytes expected;
      for (size_t from = 0; from < 3; ++from) {
        int64_t first = 0;
        for (size_t before = 0; before < to; ++before) first += splits[from][before];
        const auto row = static_cast<std::ptrdiff_t>(collective.row_elements * 2);
        const auto begin = data[from].inputs[0].begin() + first * row;
        expected.insert(expected.end(), begin, begin + splits[from][to] * row);
      }
      ASSERT_TRUE(data[to].result == expected) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace horocache::data
