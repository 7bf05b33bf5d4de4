#include "base/ring_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <random>

namespace horocache {
namespace {

TEST(RingQueue, BehavesLikeADeque) {
  std::mt19937 random(7);
  RingQueue<int> ring;
  std::deque<int> expected;
  for (int i = 0; i < 20000; ++i) {
    switch (random() % 5) {
      case 0:
      case 1:
      case 2:
        ring.push_back(i % 50);
        expected.push_back(i % 50);
        break;
      case 3:
        if (!expected.empty()) {
          ring.pop_front();
          expected.pop_front();
        }
        break;
      default:
        ring.Erase(i % 50);
        std::erase(expected, i % 50);
    }
    if (random() % 500 == 0) {
      while (!expected.empty()) {
        ASSERT_EQ(ring.front(), expected.front());
        ring.pop_front();
        expected.pop_front();
      }
    }
    ASSERT_EQ(ring.size(), expected.size());
    ASSERT_EQ(ring.empty(), expected.empty());
    if (expected.empty()) continue;
    ASSERT_EQ(ring.front(), expected.front());
    ASSERT_EQ(ring.back(), expected.back());
    const size_t at = random() % expected.size();
    ASSERT_EQ(ring.at(at), expected[at]);
  }
}

TEST(RingQueue, DestroysRemovedElements) {
  RingQueue<std::shared_ptr<int>> ring;
  const auto value = std::make_shared<int>(1);
  ring.push_back(value);
  ring.pop_front();
  EXPECT_EQ(value.use_count(), 1);
  for (int i = 0; i < 3; ++i) ring.push_back(value);
  ring.push_back(nullptr);
  ring.Erase(value);
  EXPECT_EQ(ring.size(), 1u);
  EXPECT_EQ(value.use_count(), 1);
}

}  // namespace
}  // namespace horocache
