#include "data/fusion_buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "data/numbers.h"
#include "data/ranks.h"

namespace horocache::data {
namespace {

using testing::Bytes;

TEST(FusionBufferTest, GrowsOnDemandAndKeepsItsMemory) {
  FusionBuffer buffer;
  ASSERT_TRUE(buffer.Reserve(100).ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 4096, 0u);
  const std::byte* const before = buffer.data();
  ASSERT_TRUE(buffer.Reserve(4000).ok());
  EXPECT_EQ(buffer.data(), before);
  ASSERT_TRUE(buffer.Reserve(100000).ok());
  EXPECT_GE(buffer.capacity(), 100000);
}

TEST(FusionBufferTest, PacksAndUnpacksSegmentsInOrder) {
  const Bytes first = testing::RandomBits(40, 1), second = testing::RandomBits(24, 2);
  Bytes first_out(40), second_out(24);
  const std::vector<Segment> segments = {
      {first.data(), first_out.data(), 10}, {nullptr, nullptr, 5}, {second.data(), second_out.data(), 6}};
  FusionBuffer buffer;
  ASSERT_TRUE(buffer.Reserve(84).ok());
  buffer.Pack(segments, 4);
  EXPECT_EQ(std::memcmp(buffer.data() + 60, second.data(), 24), 0);
  buffer.Unpack(segments, 4);
  EXPECT_TRUE(first_out == first);
  EXPECT_TRUE(second_out == second);
}

}  // namespace
}  // namespace horocache::data
