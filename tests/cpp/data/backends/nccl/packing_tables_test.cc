#include "data/backends/nccl/packing_tables.h"

#include <gtest/gtest.h>

#include "cuda/fake_driver.h"

namespace horocache::data {
namespace {

using cuda::testing::FakeDriver;
using cuda::testing::Good;

class PackingTablesTest : public ::testing::Test {
 protected:
  const std::shared_ptr<cuda::Device> device_ = FakeDriver::Get().device();
  const cuda::Device::Scope scope_{*device_};
  const std::unique_ptr<cuda::Stream> stream_ = Good(cuda::Stream::Make(device_));

  // A table of some tensors; each number has its own.
  const PackingTableOnDevice* Get(PackingTables* tables, uint64_t number, size_t tensors = 100) {
    std::vector<cuda::PackedTensor> list;
    for (size_t i = 0; i < tensors; ++i) list.push_back({nullptr, 16 * i, number + 1});
    return Good(tables->Get(list, 4, device_, stream_.get()));
  }
  // The bytes that the device has.
  std::vector<std::byte> Read(const PackingTableOnDevice& table) {
    while (!stream_->idle()) {
    }
    std::vector<std::byte> bytes(table.table.bytes.size());
    const auto copy = FakeDriver::Get().Function<cuda::Code(void*, cuda::Address, size_t)>("cuMemcpyDtoH_v2");
    EXPECT_EQ(copy(bytes.data(), reinterpret_cast<cuda::Address>(table.memory), bytes.size()), cuda::kSuccess);
    return bytes;
  }
};

TEST_F(PackingTablesTest, ATableIsWrittenOnce) {
  PackingTables tables;
  const PackingTableOnDevice* const first = Get(&tables, 1);
  EXPECT_EQ(Read(*first), first->table.bytes);
  const uint64_t copies = FakeDriver::Get().Calls("cuMemcpyHtoDAsync_v2");
  EXPECT_NE(Get(&tables, 2)->memory, first->memory);
  EXPECT_EQ(Get(&tables, 1), first);
  EXPECT_EQ(FakeDriver::Get().Calls("cuMemcpyHtoDAsync_v2"), copies + 1);
}

TEST_F(PackingTablesTest, BeginAgainWhenTheirBlockIsFull) {
  PackingTables tables;
  const std::byte* const begin = Get(&tables, 0)->memory;
  const uint64_t blocks = FakeDriver::Get().Calls("cuMemAlloc_v2");
  bool again = false;
  for (uint64_t number = 1; number < 3000; ++number) {
    const PackingTableOnDevice* const table = Get(&tables, number);
    again |= table->memory == begin;
    if (number % 97 != 0 && table->memory != begin) continue;
    ASSERT_EQ(Read(*table), table->table.bytes) << number;
  }
  EXPECT_TRUE(again);
  EXPECT_EQ(FakeDriver::Get().Calls("cuMemAlloc_v2"), blocks) << "and take no more memory";
}

TEST_F(PackingTablesTest, ALimitedNumberIsKept) {
  PackingTables tables;
  for (uint64_t number = 0; number <= 1024; ++number) Get(&tables, number, 1);
  const auto written = [] { return FakeDriver::Get().Calls("cuMemcpyHtoDAsync_v2"); };
  const uint64_t before = written();
  Get(&tables, 1024, 1);
  EXPECT_EQ(written(), before);
  Get(&tables, 0, 1);
  EXPECT_EQ(written(), before + 1);
}

TEST_F(PackingTablesTest, ALongTableHasALargerBlock) {
  PackingTables tables;
  Get(&tables, 1);
  const PackingTableOnDevice* const large = Get(&tables, 2, 300'000);  // more than one source of pinned memory
  EXPECT_EQ(Read(*large), large->table.bytes);
  const PackingTableOnDevice* const small = Get(&tables, 1);
  EXPECT_EQ(Read(*small), small->table.bytes);
}

}  // namespace
}  // namespace horocache::data
