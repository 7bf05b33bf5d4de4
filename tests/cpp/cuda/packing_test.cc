// The packing kernels on the fake driver, which computes what tests/unit/benchmarks shows that their text computes.
#include "cuda/packing.h"

#include <gtest/gtest.h>

#include <cstring>

#include "cuda/device.h"
#include "cuda/fake_driver.h"

namespace horocache::cuda {
namespace {

using testing::DeviceMemory;
using testing::FakeDriver;
using testing::Good;
using Direction = PackingKernels::Direction;

TEST(PackingTableTest, HasTheTensorsAndThenTheirParts) {
  const size_t part = 4096;  // elements of 4 bytes
  const std::vector<PackedTensor> tensors = {{reinterpret_cast<const std::byte*>(0x1000), 0, part + 1},
                                             {reinterpret_cast<const std::byte*>(0x9000), part + 4, 1}};
  const PackingTable table(tensors, 4);
  EXPECT_EQ(table.parts, 3u);
  EXPECT_EQ(table.part_length, part);
  ASSERT_EQ(table.bytes.size(), table.parts_at + 3 * 8);
  EXPECT_EQ(std::memcmp(table.bytes.data(), tensors.data(), table.parts_at), 0);
  const std::vector<uint32_t> expected = {0, 0, 0, 1, 1, 0};
  EXPECT_EQ(std::memcmp(table.bytes.data() + table.parts_at, expected.data(), 24), 0);
}

TEST(PackingTableTest, HasALimitedNumberOfParts) {
  const PackingTable table({{nullptr, 0, uint64_t{1} << 40}}, 1);
  EXPECT_EQ(table.parts, 1u << 18);
  EXPECT_EQ(uint64_t{table.parts} * table.part_length, uint64_t{1} << 40);
}

TEST(PackingKernelsTest, PackWithAFactorAndUnpack) {
  const auto device = FakeDriver::Get().device();
  const std::vector<float> numbers = {1, 2, 3, 4, 5, 6, 7};
  DeviceMemory first(12), second(16), flat(64), memory(4096);
  first.Write(reinterpret_cast<const std::byte*>(numbers.data()));
  second.Write(reinterpret_cast<const std::byte*>(numbers.data() + 3));
  const Device::Scope scope(*device);
  const PackingKernels* const kernels = Good(device->Packing());
  EXPECT_EQ(Good(device->Packing()), kernels) << "they are compiled once";
  const auto stream = Good(Stream::Make(device));
  const PackingTable table({{first.data(), 0, 3}, {second.data(), 8, 4}}, 4);
  std::vector<std::byte> bytes = table.bytes;
  bytes.resize(4096);
  memory.Write(bytes.data());
  const Driver& driver = device->driver();
  const auto launch = [&](Direction direction, double factor) {
    const Status launched = kernels->Launch(driver, DType::kFloat32, 4, direction, table, memory.data(), flat.data(),
                                            factor, stream->handle());
    EXPECT_TRUE(launched.ok()) << launched.message();
  };
  launch(Direction::kPack, 0.5);
  launch(Direction::kUnpack, 1.0);
  while (!stream->idle()) {
  }
  std::vector<float> packed(16), back(7);
  flat.Read(reinterpret_cast<std::byte*>(packed.data()));
  EXPECT_EQ(std::vector<float>(packed.begin(), packed.begin() + 3), (std::vector<float>{0.5, 1, 1.5}));
  EXPECT_EQ(std::vector<float>(packed.begin() + 8, packed.begin() + 12), (std::vector<float>{2, 2.5, 3, 3.5}));
  first.Read(reinterpret_cast<std::byte*>(back.data()));
  second.Read(reinterpret_cast<std::byte*>(back.data() + 3));
  EXPECT_EQ(back, (std::vector<float>{0.5, 1, 1.5, 2, 2.5, 3, 3.5}));
}

TEST(PackingKernelsTest, ADriverThatRefusesTheirTextIsNamed) {
  HC_IN_NEW_PROCESS({
    setenv("FAKE_GPU_FAULTS", "cuModuleLoadData:1:222", 1);
    const auto device = FakeDriver::Get().device();
    const Device::Scope scope(*device);
    const auto none = device->Packing();
    EXPECT_NE(none.status().message().find("CUDA device 0: cuModuleLoadData failed with 222"), std::string::npos)
        << none.status().message();
    EXPECT_TRUE(device->Packing().ok()) << "the next one may go well";
  });
}

}  // namespace
}  // namespace horocache::cuda
