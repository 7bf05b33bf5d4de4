// Frames that no peer may send break the engine with an error and have no other effect.
#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "runtime/p2p/message_world.h"

namespace horocache::runtime {
namespace {

using testing::Content;
using testing::Handle;
using testing::kSmall;
using testing::World;

void Inject(World& world, int from, int to, const FrameHead& head, size_t payload = 0) {
  net::MemoryNetwork::Frame frame(sizeof(head) + payload);
  std::memcpy(frame.data(), &head, sizeof(head));
  world.network().Pair(from, to).emplace_back(0, frame);
}

TEST(PointToPoint, InvalidFramesBreakTheEngineAndNameTheSender) {
  const auto u8 = static_cast<uint8_t>(DType::kUint8);
  const std::pair<FrameHead, size_t> frames[] = {
      {{.kind = static_cast<FrameKind>(99)}, 0},
      {{.kind = FrameKind::kEager, .dtype = kNumDTypes}, 0},
      {{.kind = FrameKind::kEager, .dtype = u8, .count = 5}, 4},
      {{.kind = FrameKind::kEager, .dtype = u8, .count = -1}, 0},
      {{.kind = FrameKind::kEager, .dtype = u8, .tag = -1}, 0},
      {{.kind = FrameKind::kEager, .dtype = u8, .count = 5 << 20}, 5 << 20},
      {{.kind = FrameKind::kAnnounce, .dtype = u8, .count = int64_t{1} << 61}, 0},
      {{.kind = FrameKind::kGrant, .id = 77}, 0},
      {{.kind = FrameKind::kData, .id = 77}, 10},
      {{.kind = FrameKind::kRefuse, .id = 77}, 0},
      {{.kind = FrameKind::kCredit, .credit = 1}, 0},
  };
  for (const auto& [head, payload] : frames) {
    World world(3);
    const Handle pending = world.Recv(1, 0, kSmall, 9);
    Inject(world, 2, 1, head, payload);
    world.Run();
    ASSERT_TRUE(pending->done()) << static_cast<int>(head.kind);
    EXPECT_EQ(pending->status().code(), StatusCode::kCorrupt);
    EXPECT_NE(pending->status().message().find("rank 1 cannot read a message from rank 2"), std::string::npos)
        << pending->status().message();
  }
}

TEST(PointToPoint, RandomFramesDoNotCrash) {
  constexpr size_t kAnnounced = PointToPoint::kEagerBytes + 1000;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    World world(3, seed);
    horocache::testing::SeededRandom random(seed);
    std::vector<Handle> keep;
    keep.push_back(world.Recv(1, 2, kAnnounced, 1));
    keep.push_back(world.Send(1, 2, Content(kAnnounced, 1), 1));
    keep.push_back(world.Recv(1, 2, kSmall, 0));
    world.Run();
    for (int i = 0; i < 8; ++i) {
      FrameHead head{.kind = static_cast<FrameKind>(random.Below(9)),
                     .dtype = static_cast<uint8_t>(random.Below(13)),
                     .credit = static_cast<uint32_t>(random.Below(3)),
                     .process_set = static_cast<uint32_t>(random.Below(2)),
                     .tag = static_cast<int32_t>(random.Below(3)) - (random.Below(20) == 0 ? 1 : 0),
                     .id = random.Below(4),
                     .count = static_cast<int64_t>(random.Below(300))};
      if (random.Below(10) == 0) head.count = static_cast<int64_t>(random.Next());
      const size_t payload = random.Below(2) == 0 ? static_cast<size_t>(random.Below(300)) : 0;
      Inject(world, 2, 1, head, payload);
      if (random.Below(4) == 0) world.Run();
    }
    world.Run();
    for (const Handle& one : keep) {
      if (!one->done()) continue;
      EXPECT_NE(one->status().code(), StatusCode::kInternal);
    }
    // The operations that are still pending must end.
    world[1].EndWith({StatusCode::kPeerLost, "over."}, world.network().now_ns);
    for (const Handle& one : keep) ASSERT_TRUE(one->done()) << "seed " << seed;
  }
}

TEST(PointToPoint, AFrameThatIsTooShortBreaksTheEngine) {
  World world(2);
  const Handle pending = world.Recv(1, 0, kSmall);
  world.network().Pair(0, 1).emplace_back(0, net::MemoryNetwork::Frame(10));
  world.Run();
  EXPECT_EQ(pending->status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace horocache::runtime
