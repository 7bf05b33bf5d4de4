// The engine of messages over links in memory: N ranks in one thread, seeded schedules, a clock of the test's.
#include "runtime/point_to_point.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "net/memory_link.h"
#include "runtime/message_operation.h"

namespace horocache::runtime {
namespace {

constexpr int64_t kWarnNs = 10 * kNsPerS;
constexpr int64_t kFailNs = 600 * kNsPerS;
constexpr size_t kSmall = 100;
constexpr size_t kLarge = 200'000;

// A send or recv, with its tensor.
struct Message {
  Operation* operation = nullptr;
  std::vector<std::byte> memory;
  bool done() const { return IsDone(*operation); }
  const Status& status() const { return operation->status; }
};
using Handle = std::unique_ptr<Message>;

std::vector<std::byte> Content(size_t bytes, uint64_t seed) {
  net::SeededRandom random(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random.Next());
  return out;
}

class World {
 public:
  explicit World(int ranks, uint64_t seed = 0, int64_t delay_ns = 0, size_t room = 4)
      : network_(ranks, seed, delay_ns, room), order_(seed + 1000), left_(static_cast<size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      PointToPointConfig config;
      config.rank = rank;
      config.links.push_back(std::make_unique<net::MemoryLink>(&network_, rank));
      for (int peer = 0; peer < ranks; ++peer) config.routes.push_back({0, peer});
      config.stall_warn_ns = kWarnNs;
      config.stall_fail_ns = kFailNs;
      config.has_left = [this](int peer) { return static_cast<bool>(left_[static_cast<size_t>(peer)]); };
      metrics_.push_back(std::make_unique<Metrics>(ranks));
      engines_.push_back(std::make_unique<PointToPoint>(std::move(config), &table_, metrics_.back().get()));
    }
  }

  PointToPoint& operator[](int rank) { return *engines_[static_cast<size_t>(rank)]; }
  net::MemoryNetwork& network() { return network_; }
  Metrics& metrics(int rank) { return *metrics_[static_cast<size_t>(rank)]; }
  void SetLeft(int rank) { left_[static_cast<size_t>(rank)] = true; }

  Handle Send(int from, int to, std::vector<std::byte> content, int32_t tag = 0, uint32_t set = 0) {
    return Submit(wire::Op::kSend, from, to, std::move(content), tag, set, DType::kUint8);
  }
  Handle Recv(int rank, int from, size_t bytes, int32_t tag = 0, uint32_t set = 0, DType dtype = DType::kUint8) {
    return Submit(wire::Op::kRecv, rank, from, std::vector<std::byte>(bytes), tag, set, dtype);
  }

  // Steps all ranks in random orders, as time goes on, until nothing moves.
  void Run() {
    for (int quiet = 0; quiet < 3;) {
      network_.now_ns += 1 + network_.max_delay_ns / 2;
      bool moved = false;
      for (size_t i = 0; i < engines_.size(); ++i) {
        moved |= engines_[order_.Below(engines_.size())]->Step(network_.now_ns);
      }
      for (auto& engine : engines_) moved |= engine->Step(network_.now_ns);
      quiet = moved ? 0 : quiet + 1;
    }
  }
  void Advance(int64_t ns) {
    network_.now_ns += ns;
    for (auto& engine : engines_) engine->Check(network_.now_ns);
  }

 private:
  Handle Submit(wire::Op op, int rank, int peer, std::vector<std::byte> memory, int32_t tag, uint32_t set,
                DType dtype) {
    auto message = std::make_unique<Message>();
    message->memory = std::move(memory);
    Operation* operation = table_.New();
    message->operation = operation;
    wire::Signature& signature = operation->request.signature;
    signature.op = op;
    signature.root = peer;
    signature.tensors.assign(1, {"", dtype, {}});
    operation->process_set = set;
    operation->tag = tag;
    const auto count = static_cast<int64_t>(message->memory.size() / DTypeBytes(dtype));
    operation->tensors.assign(1, {message->memory.data(), message->memory.data(), count, count});
    operation->submitted_ns = network_.now_ns;
    EXPECT_TRUE(CheckMessage(*operation, network_.size).ok());
    (*this)[rank].Submit(operation, network_.now_ns);
    return message;
  }

  net::MemoryNetwork network_;
  net::SeededRandom order_;
  std::vector<bool> left_;
  OperationTable table_;
  std::vector<std::unique_ptr<Metrics>> metrics_;
  std::vector<std::unique_ptr<PointToPoint>> engines_;
};

std::string ReportOf(PointToPoint& engine) {
  std::string all, one;
  while (engine.NextReport(&one)) all += one + "\n";
  return all;
}

TEST(PointToPoint, RandomMessagesArriveInOrderForEachSourceDestinationTagAndSet) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const int ranks = 3 + static_cast<int>(seed % 2);
    World world(ranks, seed, static_cast<int64_t>(seed % 3) * 1000, 1 + seed % 4);
    net::SeededRandom random(seed);
    using Key = std::tuple<int, int, int32_t, uint32_t>;
    std::map<Key, std::vector<size_t>> sizes;  // by key, in the order of sending
    std::vector<std::tuple<Key, bool>> todo;   // and whether it is the send
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

TEST(PointToPoint, ASmallSendIsCompleteAtOnceALargeOneWhenItHasBeenReceived) {
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

TEST(PointToPoint, ASmallMessageDoesNotWaitForLargeOnesOnTheirWay) {
  World world(2, 0, 1000, 1);
  const Handle sends[] = {world.Send(0, 1, Content(10 * kLarge, 1), 1), world.Send(0, 1, Content(10 * kLarge, 2), 2)};
  const Handle recvs[] = {world.Recv(1, 0, 10 * kLarge, 1), world.Recv(1, 0, 10 * kLarge, 2)};
  const Handle wanted = world.Recv(1, 0, kSmall, 3);
  for (int i = 0; i < 40; ++i) {
    world.network().now_ns += 1000;
    for (const int rank : {0, 1}) world[rank].Step(world.network().now_ns);
  }
  const Handle small = world.Send(0, 1, Content(kSmall, 3), 3);
  while (!wanted->done()) {
    world.network().now_ns += 1000;
    for (const int rank : {0, 1}) world[rank].Step(world.network().now_ns);
  }
  EXPECT_FALSE(recvs[0]->done() || recvs[1]->done());
  world.Run();
  for (const int i : {0, 1}) EXPECT_EQ(recvs[i]->memory, sends[i]->memory);
}

// ---- disagreements

TEST(PointToPoint, ALargeMessageThatDoesNotFitFailsOnBothRanksAlikeAndTheNextOneArrives) {
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

TEST(PointToPoint, ASmallMessageThatDoesNotFitFailsOnItsReceiverAlone) {
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

TEST(PointToPoint, BeyondItsCreditASenderAnnouncesAndTheCreditComesBack) {
  for (const size_t bytes : {size_t{16} << 10, size_t{0}}) {
    World world(2);
    const auto fits = static_cast<size_t>(PointToPoint::kCreditBytes) / (bytes + PointToPoint::kKeepBytes);
    for (int turn = 0; turn < (bytes == 0 ? 1 : 3); ++turn) {
      std::vector<Handle> sent;
      for (size_t i = 0; i < fits + 3; ++i) sent.push_back(world.Send(0, 1, Content(bytes, i)));
      world.Run();
      size_t done = 0;
      for (const Handle& one : sent) done += one->done() ? 1 : 0;
      // Up to a quarter of the credit comes back later, on another frame.
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

// ---- ends

TEST(PointToPoint, WhatWasSentIsReceivedAfterItsSenderHasLeft) {
  World world(3);
  const Handle sent = world.Send(0, 1, Content(kSmall, 1), 1);
  const Handle lost = world.Send(0, 1, Content(kLarge, 2), 1);
  const Handle behind = world.Send(0, 1, Content(kSmall, 3), 1);
  const Handle waits = world.Recv(1, 0, kSmall, 2);
  world.Run();
  const Handle posted = world.Recv(0, 1, kSmall);
  world[0].Leave(world.network().now_ns);
  EXPECT_FALSE(world[0].HasLeft());
  world.Run();
  EXPECT_TRUE(world[0].HasLeft());
  for (const Handle* one : {&lost, &posted, &waits}) {
    ASSERT_TRUE((*one)->done());
    EXPECT_EQ((*one)->status().code(), StatusCode::kShutDown) << (*one)->status().ToString();
  }
  EXPECT_NE(waits->status().message().find("rank 0 shut down"), std::string::npos) << waits->status().message();
  const Handle first = world.Recv(1, 0, kSmall, 1);
  EXPECT_EQ(first->memory, sent->memory);
  const Handle second = world.Recv(1, 0, kLarge, 1);
  EXPECT_EQ(second->status().code(), StatusCode::kShutDown) << "in its place in the order";
  const Handle third = world.Recv(1, 0, kSmall, 1);
  EXPECT_EQ(third->memory, behind->memory);
  EXPECT_EQ(world.Recv(1, 0, kSmall, 1)->status().code(), StatusCode::kShutDown);
  EXPECT_EQ(world.Send(1, 0, Content(kSmall, 1))->status().code(), StatusCode::kShutDown);
  const Handle others = world.Send(2, 1, Content(kLarge, 4));
  const Handle go_on = world.Recv(1, 2, kLarge);
  world.Run();
  EXPECT_EQ(go_on->memory, others->memory);
}

TEST(PointToPoint, ATransferThatHasBegunEndsWellAlthoughItsSenderLeaves) {
  World world(2, 0, 1000, 1);
  const Handle recv = world.Recv(1, 0, 10 * kLarge);
  const Handle send = world.Send(0, 1, Content(10 * kLarge, 1));
  for (int i = 0; i < 30; ++i) {
    world.network().now_ns += 1000;
    for (const int rank : {0, 1}) world[rank].Step(world.network().now_ns);
  }
  world[0].Leave(world.network().now_ns);
  EXPECT_FALSE(send->done());
  world.Run();
  EXPECT_TRUE(world[0].HasLeft());
  EXPECT_TRUE(send->status().ok()) << send->status().ToString();
  EXPECT_EQ(recv->memory, send->memory);
}

TEST(PointToPoint, RanksThatCannotBeReachedDelayNobodysLeave) {
  net::MemoryNetwork network(1, 0, 0, 4);
  PointToPointConfig config;
  config.rank = 1;
  config.links.push_back(std::make_unique<net::MemoryLink>(&network, 0));
  config.routes = {{}, {0, 0}, {}};
  OperationTable table;
  Metrics metrics(3);
  PointToPoint engine(std::move(config), &table, &metrics);
  engine.Leave(1);
  engine.Step(2);
  EXPECT_TRUE(engine.HasLeft());
}

TEST(PointToPoint, AReceiverThatLeavesInTheMiddleFailsItsSender) {
  World world(2, 0, 1000, 1);
  const Handle recv = world.Recv(1, 0, 10 * kLarge);
  const Handle send = world.Send(0, 1, Content(10 * kLarge, 1));
  for (int i = 0; i < 30; ++i) {
    world.network().now_ns += 1000;
    for (const int rank : {0, 1}) world[rank].Step(world.network().now_ns);
  }
  world[1].Leave(world.network().now_ns);
  world.Run();
  EXPECT_EQ(recv->status().code(), StatusCode::kShutDown);
  EXPECT_EQ(send->status().code(), StatusCode::kShutDown);
}

TEST(PointToPoint, ARankThatLeftWithoutFarewellIsNoticedAndWhatItHadSentArrives) {
  World world(2);
  const Handle sent = world.Send(0, 1, Content(kSmall, 1), 1);
  world[0].Step(world.network().now_ns);
  const Handle vain = world.Recv(1, 0, kSmall, 2);
  world.SetLeft(0);
  world.Advance(1);
  ASSERT_TRUE(vain->done());
  EXPECT_EQ(vain->status().code(), StatusCode::kShutDown);
  EXPECT_EQ(world.Recv(1, 0, kSmall, 1)->memory, sent->memory);
}

TEST(PointToPoint, ALossFailsEverythingAndDeliversWhatHasArrived) {
  World world(3);
  const Handle sent = world.Send(0, 1, Content(kSmall, 1), 1);
  world[0].Step(world.network().now_ns);
  const Handle pending[] = {world.Recv(1, 2, kSmall), world.Send(1, 2, Content(kLarge, 1)),
                            world.Recv(1, 0, kSmall, 2)};
  const Handle arrived = world.Recv(1, 0, kSmall, 1);
  EXPECT_FALSE(arrived->done());
  world[1].Lose({StatusCode::kPeerLost, "rank 0 ended."}, world.network().now_ns);
  EXPECT_EQ(arrived->memory, sent->memory);
  for (const Handle& one : pending) {
    ASSERT_TRUE(one->done());
    EXPECT_EQ(one->status().code(), StatusCode::kPeerLost);
    EXPECT_EQ(one->status().message().find("rank 0 ended. "), 0u) << one->status().message();
  }
  EXPECT_NE(pending[1]->status().message().find("send to rank 2 with tag 0 (200000 bytes) was pending on rank 1"),
            std::string::npos);
  EXPECT_EQ(world.Send(1, 2, Content(kSmall, 1))->status().code(), StatusCode::kPeerLost);
  EXPECT_TRUE(world[1].HasLeft());
}

// ---- stalls

TEST(PointToPoint, WhatWaitsForTooLongIsReportedAndThenFails) {
  World world(4);
  world.network().deaf = {3};
  const Handle recv = world.Recv(1, 0, kSmall, 4);
  const Handle large = world.Send(1, 2, Content(kLarge, 1), 5);
  std::vector<Handle> deaf;
  for (int i = 0; i < 8; ++i) deaf.push_back(world.Send(1, 3, Content(kSmall, 1), 6));
  world.Run();
  world.Advance(kWarnNs - kNsPerS);
  EXPECT_EQ(ReportOf(world[1]), "");
  world.Advance(kNsPerS);
  const std::string report = ReportOf(world[1]);
  for (const char* text :
       {"recv from rank 0 with tag 4 (100 bytes) has waited for 10 s on rank 1: rank 0 has not sent such a message.",
        "send to rank 2 with tag 5 (200000 bytes) has waited for 10 s on rank 1: rank 2 has not posted a recv for it.",
        "rank 3 takes no messages", "And 2 more."}) {
    EXPECT_NE(report.find(text), std::string::npos) << report;
  }
  world.Advance(kWarnNs / 2);
  EXPECT_EQ(ReportOf(world[1]), "");
  world.Advance(kWarnNs / 2);
  EXPECT_NE(ReportOf(world[1]), "");
  world.Advance(kFailNs);
  for (const Handle* one : {&recv, &large, &std::as_const(deaf).back()}) {
    ASSERT_TRUE((*one)->done());
    EXPECT_EQ((*one)->status().code(), StatusCode::kStall);
  }
  EXPECT_NE(recv->status().message().find("STALL_SHUTDOWN_TIME"), std::string::npos);
  EXPECT_TRUE(deaf.front()->status().ok());
  // The engine goes on, and who asks for what was given up is told.
  const Handle late = world.Recv(2, 1, kLarge, 5);
  world.Run();
  EXPECT_EQ(late->status().code(), StatusCode::kStall);
  EXPECT_NE(late->status().message().find("rank 1 had given its send up"), std::string::npos)
      << late->status().message();
  const Handle again = world.Send(0, 1, Content(kSmall, 9), 4);
  const Handle after = world.Recv(1, 0, kSmall, 4);
  world.Run();
  EXPECT_EQ(after->memory, again->memory);
}

TEST(PointToPoint, ATransferThatStopsInTheMiddleFailsOnBothSidesAndLeavesTheLinkInOrder) {
  for (const bool sender_gives_up : {true, false}) {
    World world(2, 0, 0, 1);
    const Handle recv = world.Recv(1, 0, 10 * kLarge);
    const Handle send = world.Send(0, 1, Content(10 * kLarge, 1));
    for (int i = 0; i < 30; ++i) {
      world.network().now_ns += 1;
      for (const int rank : {0, 1}) world[rank].Step(world.network().now_ns);
    }
    ASSERT_FALSE(send->done() || recv->done());
    world.network().now_ns += kFailNs;
    world[sender_gives_up ? 0 : 1].Check(world.network().now_ns);
    world.Run();
    ASSERT_TRUE(send->done() && recv->done());
    EXPECT_EQ(recv->status().code(), StatusCode::kStall) << recv->status().ToString();
    EXPECT_EQ(send->status().ok(), !sender_gives_up) << send->status().ToString();
    const Handle next = world.Send(0, 1, Content(kLarge, 2));
    const Handle after = world.Recv(1, 0, kLarge);
    world.Run();
    EXPECT_EQ(after->memory, next->memory);
  }
}

// ---- what no peer may send

void Inject(World& world, int from, int to, const FrameHead& head, size_t payload = 0) {
  net::MemoryNetwork::Frame frame(sizeof(head) + payload);
  std::memcpy(frame.data(), &head, sizeof(head));
  world.network().Pair(from, to).emplace_back(0, frame);
}

TEST(PointToPoint, FramesThatNobodyMaySendBreakTheEngineWithAnErrorThatNamesTheSender) {
  const auto u8 = static_cast<uint8_t>(DType::kUint8);
  const std::pair<FrameHead, size_t> frames[] = {
      {{.kind = static_cast<FrameKind>(99)}, 0},
      {{.kind = FrameKind::kEager, .dtype = 12}, 0},
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

TEST(PointToPoint, RandomFramesCrashNobody) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    World world(3, seed);
    net::SeededRandom random(seed);
    std::vector<Handle> keep;
    keep.push_back(world.Recv(1, 2, kLarge, 1));
    keep.push_back(world.Send(1, 2, Content(kLarge, 1), 1));
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
    // What is left must still end.
    world[1].Lose({StatusCode::kPeerLost, "over."}, world.network().now_ns);
    for (const Handle& one : keep) ASSERT_TRUE(one->done()) << "seed " << seed;
  }
}

TEST(PointToPoint, AFrameTooShortForAHeadBreaksTheEngine) {
  World world(2);
  const Handle pending = world.Recv(1, 0, kSmall);
  world.network().Pair(0, 1).emplace_back(0, net::MemoryNetwork::Frame(10));
  world.Run();
  EXPECT_EQ(pending->status().code(), StatusCode::kCorrupt);
}

// ---- arguments

TEST(CheckMessage, RefusesWhatNoRankCouldSendOrReceive) {
  OperationTable table;
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
