// Messages that end without delivery: a rank leaves, the job is lost, or a message waits for too long.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/p2p/message_world.h"

namespace horocache::runtime {
namespace {

using testing::Content;
using testing::Handle;
using testing::kFailNs;
using testing::kLarge;
using testing::kSmall;
using testing::kWarnNs;
using testing::ReportOf;
using testing::World;

TEST(PointToPoint, AMessageIsReceivedAfterItsSenderHasLeft) {
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

TEST(PointToPoint, ATransferUnderWayCompletesAlthoughItsSenderLeaves) {
  World world(2, 0, 1000, 1);
  const Handle recv = world.Recv(1, 0, 10 * kLarge);
  const Handle send = world.Send(0, 1, Content(10 * kLarge, 1));
  world.StepAll(30, 1000);
  world[0].Leave(world.network().now_ns);
  EXPECT_FALSE(send->done());
  world.Run();
  EXPECT_TRUE(world[0].HasLeft());
  EXPECT_TRUE(send->status().ok()) << send->status().ToString();
  EXPECT_EQ(recv->memory, send->memory);
}

TEST(PointToPoint, UnreachableRanksDoNotDelayALeavingRank) {
  net::MemoryNetwork network(1, 0, 0, 4);
  PointToPointConfig config;
  config.rank = 1;
  config.links.push_back(std::make_unique<net::MemoryLink>(&network, 0));
  config.routes = {{}, {0, 0}, {}};
  observe::FlightRecorder recorder;
  Metrics metrics(3);
  OperationTable table{&recorder, &metrics, {}};
  PointToPoint engine(std::move(config), &table, &metrics);
  engine.Leave(1);
  engine.Step(2);
  EXPECT_TRUE(engine.HasLeft());
}

TEST(PointToPoint, AReceiverThatLeavesInTheMiddleFailsItsSender) {
  World world(2, 0, 1000, 1);
  const Handle recv = world.Recv(1, 0, 10 * kLarge);
  const Handle send = world.Send(0, 1, Content(10 * kLarge, 1));
  world.StepAll(30, 1000);
  world[1].Leave(world.network().now_ns);
  world.Run();
  EXPECT_EQ(recv->status().code(), StatusCode::kShutDown);
  EXPECT_EQ(send->status().code(), StatusCode::kShutDown);
}

TEST(PointToPoint, ARankThatLeftWithoutAFrameIsNoticedAndItsMessagesArrive) {
  World world(2);
  const Handle sent = world.Send(0, 1, Content(kSmall, 1), 1);
  world[0].Step(world.network().now_ns);
  const Handle pending = world.Recv(1, 0, kSmall, 2);
  world.SetLeft(0);
  world.Advance(1);
  ASSERT_TRUE(pending->done());
  EXPECT_EQ(pending->status().code(), StatusCode::kShutDown);
  EXPECT_EQ(world.Recv(1, 0, kSmall, 1)->memory, sent->memory);
}

TEST(PointToPoint, ALossFailsPendingMessagesAndDeliversArrivedOnes) {
  World world(3);
  const Handle sent = world.Send(0, 1, Content(kSmall, 1), 1);
  world[0].Step(world.network().now_ns);
  const Handle pending[] = {world.Recv(1, 2, kSmall), world.Send(1, 2, Content(kLarge, 1)),
                            world.Recv(1, 0, kSmall, 2)};
  const Handle arrived = world.Recv(1, 0, kSmall, 1);
  EXPECT_FALSE(arrived->done());
  world[1].EndWith({StatusCode::kPeerLost, "rank 0 ended."}, world.network().now_ns);
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

TEST(PointToPoint, AMessageThatWaitsTooLongIsReportedAndThenFails) {
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
  // The engine goes on. A rank that receives a message whose sender has given up gets an error.
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

TEST(PointToPoint, TheLimitDoesNotCountWhileThePeerComputes) {
  World world(2);
  const Handle recv = world.Recv(1, 0, kSmall);
  for (int64_t waited_ns = 0; waited_ns < 3 * kFailNs; waited_ns += kWarnNs) {
    world.SetComputed(0);
    world.Advance(kWarnNs);
    ASSERT_FALSE(recv->done()) << "after " << waited_ns;
    EXPECT_NE(ReportOf(world[1]), "") << "the wait is not reported";
  }
  world.Advance(kFailNs);
  ASSERT_TRUE(recv->done());
  EXPECT_EQ(recv->status().code(), StatusCode::kStall);
}

TEST(PointToPoint, ATransferThatStopsInTheMiddleFailsOnBothSidesAndLeavesTheLinkInOrder) {
  for (const bool sender_gives_up : {true, false}) {
    World world(2, 0, 0, 1);
    const Handle recv = world.Recv(1, 0, 10 * kLarge);
    const Handle send = world.Send(0, 1, Content(10 * kLarge, 1));
    world.StepAll(30, 1);
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

}  // namespace
}  // namespace horocache::runtime
