// Messages between ranks: their order, disagreements, bounded memory, arguments.
#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/p2p/message_world.h"

namespace horocache::runtime {
namespace {

using testing::Content;
using testing::Handle;
using testing::kLarge;
using testing::kSmall;
using testing::World;

TEST(PointToPoint, RandomMessagesArriveInOrderForEachSourceDestinationTagAndSet) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const int ranks = 3 + static_cast<int>(seed % 2);
    World world(ranks, seed, static_cast<int64_t>(seed % 3) * 1000, 1 + seed % 4);
    horocache::testing::SeededRandom random(seed);
    using Key = std::tuple<int, int, int32_t, uint32_t>;
    std::map<Key, std::vector<size_t>> sizes;  // by key, in the order of sending
    std::vector<std::tuple<Key, bool>> todo;   // true: the send of the key
    for (int i = 0; i < 60; ++i) {
      const Key key{random.Below(ranks), random.Below(ranks), random.Below(3), random.Below(2)};
      const size_t of[] = {0, 1, random.Below(200), 16 << 10, (16 << 10) + 1, random.Below(100'000)};
      sizes[key].push_back(of[random.Below(6)]);
      todo.emplace_back(key, true);
      todo.emplace_back(key, false);
    }
    for (size_t i = todo.size(); i > 1; --i) std::swap(todo[i - 1], todo[random.Below(i)]);
    std::map<Key, std::vector<Handle>> sent, received;
    for (const auto& [key, is_send] : todo) {
      const auto [from, to, tag, set] = key;
      auto& list = (is_send ? sent : received)[key];
      const size_t bytes = sizes[key][list.size()];
      list.push_back(is_send ? world.Send(from, to, Content(bytes, list.size()), tag, set)
                             : world.Recv(to, from, bytes, tag, set));
      if (random.Below(3) == 0) world[static_cast<int>(random.Below(ranks))].Step(world.network().now_ns);
      if (random.Below(20) == 0) world.Run();
    }
    world.Run();
    for (const auto& [key, list] : received) {
      for (size_t i = 0; i < list.size(); ++i) {
        ASSERT_TRUE(list[i]->done()) << "seed " << seed << " message " << i << " of rank " << std::get<0>(key);
        ASSERT_TRUE(list[i]->status().ok()) << list[i]->status().ToString();
        ASSERT_EQ(list[i]->memory, Content(sizes[key][i], i)) << "seed " << seed << " message " << i;
        ASSERT_TRUE(sent[key][i]->done()) << "seed " << seed;
      }
    }
    for (int rank = 0; rank < ranks; ++rank) EXPECT_FALSE(world[rank].Transferring()) << "seed " << seed;
  }
}

TEST(PointToPoint, SmallSendsCompleteAtOnceAndLargeOnesWhenReceived) {
  World world(2);
  const Handle small = world.Send(0, 1, Content(16 << 10, 1), 1);
  const Handle large = world.Send(0, 1, Content((16 << 10) + 1, 2), 2);
  world.Run();
  EXPECT_TRUE(small->done());
  EXPECT_FALSE(large->done());
  const Handle second = world.Recv(1, 0, (16 << 10) + 1, 2);
  world.Run();
  EXPECT_TRUE(large->done());
  EXPECT_EQ(second->memory, large->memory);
  const Handle first = world.Recv(1, 0, 16 << 10, 1);
  EXPECT_TRUE(first->done()) << "it had arrived";
  EXPECT_EQ(first->memory, small->memory);
  EXPECT_EQ(world.metrics(0).messages_sent.Get(), 2u);
  EXPECT_EQ(world.metrics(1).messages_received.Get(), 2u);
  EXPECT_EQ(world.metrics(1).message_bytes_received.Get(), (32u << 10) + 1);
}

TEST(PointToPoint, TwoRanksThatSendLargeMessagesToEachOtherFirstNeedTheirReceives) {
  World world(2);
  const Handle sends[] = {world.Send(0, 1, Content(kLarge, 1)), world.Send(1, 0, Content(kLarge, 2))};
  world.Run();
  EXPECT_FALSE(sends[0]->done() || sends[1]->done());
  const Handle recvs[] = {world.Recv(0, 1, kLarge), world.Recv(1, 0, kLarge)};
  world.Run();
  EXPECT_EQ(recvs[0]->memory, sends[1]->memory);
  EXPECT_EQ(recvs[1]->memory, sends[0]->memory);
}

TEST(PointToPoint, ASmallMessageDoesNotWaitForLargeMessages) {
  World world(2, 0, 1000, 1);
  const Handle sends[] = {world.Send(0, 1, Content(10 * kLarge, 1), 1), world.Send(0, 1, Content(10 * kLarge, 2), 2)};
  const Handle recvs[] = {world.Recv(1, 0, 10 * kLarge, 1), world.Recv(1, 0, 10 * kLarge, 2)};
  const Handle wanted = world.Recv(1, 0, kSmall, 3);
  world.StepAll(40, 1000);
  const Handle small = world.Send(0, 1, Content(kSmall, 3), 3);
  while (!wanted->done()) world.StepAll(1, 1000);
  EXPECT_FALSE(recvs[0]->done() || recvs[1]->done());
  world.Run();
  for (const int i : {0, 1}) EXPECT_EQ(recvs[i]->memory, sends[i]->memory);
}

// ---- disagreements

TEST(PointToPoint, ALargeMismatchFailsOnBothRanksAndTheNextMessageArrives) {
  for (const bool receive_first : {true, false}) {
    World world(3);
    Handle send, recv;
    if (receive_first) recv = world.Recv(2, 1, kLarge, 7, 0, DType::kFloat32);
    send = world.Send(1, 2, Content(kLarge, 1), 7);
    world.Run();
    if (!receive_first) recv = world.Recv(2, 1, kLarge, 7, 0, DType::kFloat32);
    world.Run();
    ASSERT_TRUE(send->done() && recv->done());
    EXPECT_EQ(send->status().code(), StatusCode::kMismatch);
    EXPECT_EQ(send->status().message(), recv->status().message());
    for (const char* word :
         {"rank 1 sends 200000 elements of uint8", "rank 2 receives 50000 elements of float32", "tag 7"}) {
      EXPECT_NE(recv->status().message().find(word), std::string::npos) << recv->status().message();
    }
    const Handle next = world.Send(1, 2, Content(kLarge, 2), 7);
    const Handle fits = world.Recv(2, 1, kLarge, 7);
    world.Run();
    EXPECT_EQ(fits->memory, next->memory);
    EXPECT_EQ(world.metrics(1).messages_sent.Get(), 1u);
  }
}

TEST(PointToPoint, ASmallMismatchFailsOnTheReceiverOnly) {
  World world(2);
  const Handle send = world.Send(0, 1, Content(kSmall, 1), 3, 5);
  world.Run();
  const Handle recv = world.Recv(1, 0, kSmall - 1, 3, 5);
  world.Run();
  EXPECT_TRUE(send->status().ok());
  EXPECT_EQ(recv->status().code(), StatusCode::kMismatch);
  EXPECT_NE(recv->status().message().find("process set 5"), std::string::npos) << recv->status().message();
  const Handle next = world.Send(0, 1, Content(kSmall, 2), 3, 5);
  const Handle fits = world.Recv(1, 0, kSmall, 3, 5);
  world.Run();
  EXPECT_EQ(fits->memory, next->memory);
}

// ---- bounded memory

TEST(PointToPoint, ASenderWithoutCreditAnnouncesAndTheCreditReturns) {
  for (const size_t bytes : {size_t{16} << 10, size_t{0}}) {
    World world(2);
    const auto fits = static_cast<size_t>(PointToPoint::kCreditBytes) / (bytes + PointToPoint::kKeepBytes);
    for (int turn = 0; turn < (bytes == 0 ? 1 : 3); ++turn) {
      std::vector<Handle> sent;
      for (size_t i = 0; i < fits + 3; ++i) sent.push_back(world.Send(0, 1, Content(bytes, i)));
      world.Run();
      size_t done = 0;
      for (const Handle& one : sent) done += one->done() ? 1 : 0;
      // Up to a quarter of the credit comes back later, with another frame.
      EXPECT_LE(done, fits) << "turn " << turn;
      EXPECT_GE(done, turn == 0 ? fits : fits * 3 / 4 - 1) << "turn " << turn;
      for (size_t i = 0; i < sent.size(); ++i) {
        const Handle recv = world.Recv(1, 0, bytes);
        if (!recv->done()) world.Run();
        ASSERT_TRUE(recv->done() && recv->status().ok()) << i;
        ASSERT_EQ(recv->memory, sent[i]->memory) << i;
      }
      for (const Handle& one : sent) EXPECT_TRUE(one->done());
    }
  }
}

// ---- arguments

TEST(CheckMessage, RefusesInvalidMessages) {
  observe::FlightRecorder recorder;
  Metrics metrics(3);
  OperationTable table{&recorder, &metrics, {}};
  Operation* operation = table.New();
  std::byte memory[16];
  const auto reset = [&](wire::Op op) {
    wire::Signature& signature = operation->request.signature;
    signature = {};
    signature.op = op;
    signature.root = 1;
    signature.tensors.assign(1, {"", DType::kUint8, {16}});
    operation->tensors.assign(1, {memory, memory, 16, 16});
    operation->tag = 0;
  };
  for (const wire::Op op : {wire::Op::kSend, wire::Op::kRecv}) {
    const auto code = [&] { return CheckMessage(*operation, 2).code(); };
    reset(op);
    EXPECT_EQ(code(), StatusCode::kOk);
    for (const int root : {-1, 2}) {
      operation->request.signature.root = root;
      EXPECT_EQ(code(), StatusCode::kInvalidArgument);
    }
    reset(op);
    operation->tag = -1;
    EXPECT_EQ(code(), StatusCode::kInvalidArgument);
    reset(op);
    operation->tensors[0] = {nullptr, nullptr, 16, 16};
    EXPECT_EQ(code(), StatusCode::kInvalidArgument);
    operation->tensors[0].count = 0;
    EXPECT_EQ(code(), StatusCode::kOk) << "empty tensors have no memory";
    reset(op);
    operation->request.signature.device_class = wire::DeviceClass::kCuda;
    EXPECT_EQ(code(), StatusCode::kUnsupported);
    reset(op);
    operation->tensors.clear();
    operation->request.signature.tensors.clear();
    EXPECT_EQ(code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace horocache::runtime
