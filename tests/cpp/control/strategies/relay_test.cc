// The parts of the relaying agreements: the tree of ranks, merged requests, frames.
// tests/cpp/testing/simulation_test.cc tests how they work together.

#include "control/strategies/relay.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "control/strategies/rank_runs.h"
#include "control/strategies/relay_frame.h"
#include "control/strategies/request_merger.h"
#include "control/strategies/topology.h"

namespace horocache::control {
namespace {

// Checks that the places are one tree with rank 0 at its root; returns its depth.
int DepthOf(const std::vector<Place>& places) {
  std::vector<int> depth(places.size(), -1);
  std::vector<int> open = {0};
  depth[0] = 0;
  EXPECT_EQ(places[0].parent, -1);
  while (!open.empty()) {
    const int node = open.back();
    open.pop_back();
    for (const int child : places[static_cast<size_t>(node)].children) {
      EXPECT_EQ(depth[static_cast<size_t>(child)], -1) << child << " has two parents";
      EXPECT_EQ(places[static_cast<size_t>(child)].parent, node);
      depth[static_cast<size_t>(child)] = depth[static_cast<size_t>(node)] + 1;
      open.push_back(child);
    }
  }
  for (size_t rank = 0; rank < places.size(); ++rank) EXPECT_GE(depth[rank], 0) << rank << " is not in the tree";
  return *std::max_element(depth.begin(), depth.end());
}

TEST(Topology, ATreeOfAnySizeAndRadixHoldsEveryRankOnce) {
  for (const int radix : {2, 3, 4, 16}) {
    for (int size = 1; size <= 70; ++size) {
      SCOPED_TRACE("radix " + std::to_string(radix) + " size " + std::to_string(size));
      std::vector<Place> places;
      for (int rank = 0; rank < size; ++rank) {
        places.push_back(TreePlace(rank, size, radix));
        EXPECT_LE(places.back().children.size(), static_cast<size_t>(radix));
      }
      DepthOf(places);
    }
  }
}

TEST(Topology, ATreeIsAsDeepAsALogarithm) {
  std::vector<Place> places;
  for (int rank = 0; rank < 1024; ++rank) places.push_back(TreePlace(rank, 1024, 4));
  EXPECT_LE(DepthOf(places), 5);
}

TEST(Topology, AStarHasAllRanksBelowRankZero) {
  std::vector<Place> places;
  for (int rank = 0; rank < 9; ++rank) places.push_back(StarPlace(rank, 9));
  EXPECT_EQ(DepthOf(places), 1);
}

TEST(Topology, OnEachHostTheLowestRankLeads) {
  const std::vector<int> host_of = {5, 5, 7, 7, 5, 9};
  std::vector<Place> places;
  for (int rank = 0; rank < 6; ++rank) places.push_back(HostPlace(rank, 6, 2, host_of));
  DepthOf(places);
  EXPECT_EQ(places[1].parent, 0);
  EXPECT_EQ(places[4].parent, 0);
  EXPECT_EQ(places[3].parent, 2);
  EXPECT_TRUE(places[3].children.empty());
  EXPECT_EQ(places[0].children, (std::vector<int>{1, 2, 4, 5}));
}

TEST(RankRuns, UniteInAnyOrder) {
  RankRuns runs;
  Unite({{4, 6}}, &runs);
  Unite({{6, 7}}, &runs);
  Unite({{0, 1}, {9, 12}}, &runs);
  Unite({{1, 4}}, &runs);
  EXPECT_EQ(runs, (RankRuns{{0, 7}, {9, 12}}));
}

wire::Request RequestFor(const std::string& name, int64_t length) {
  wire::Request request;
  request.signature.name = name;
  request.signature.tensors = {{name, DType::kFloat32, {length}}};
  return request;
}

TEST(RequestMerger, MergesEqualRequestsOnly) {
  RequestMerger merger;
  merger.Add({RequestFor("a", 4), {{0, 1}}});
  merger.Add({RequestFor("a", 4), {{1, 3}}});
  merger.Add({RequestFor("a", 5), {{3, 4}}});
  const std::vector<MergedRequest> merged = merger.Take();
  ASSERT_EQ(merged.size(), 2u);
  EXPECT_EQ(merged[0].ranks, (RankRuns{{0, 3}}));
  EXPECT_EQ(merged[1].ranks, (RankRuns{{3, 4}}));
  EXPECT_TRUE(merger.merged().empty());
}

TEST(SubtreeRequests, GivesRankZeroAListPerRankAndMergedRequestsOnce) {
  SubtreeRequests basket(/*merge=*/true);
  wire::RequestList own{.rank = 0, .requests = {RequestFor("a", 4), RequestFor("b", 4)}};
  wire::RequestList leaving{.rank = 2, .leaving = true, .requests = {RequestFor("a", 4)}};
  basket.Add(std::move(own));
  basket.Add(std::move(leaving));
  std::vector<wire::RequestList> lists;
  std::vector<MergedRequest> merged;
  ASSERT_TRUE(basket.TakeAll(3, {}, &lists, &merged).ok());
  ASSERT_EQ(lists.size(), 3u);
  EXPECT_EQ(lists[0].requests, (std::vector<wire::Request>{RequestFor("b", 4)}));
  EXPECT_EQ(lists[1], (wire::RequestList{.rank = 1}));
  EXPECT_TRUE(lists[2].leaving);
  ASSERT_EQ(merged.size(), 1u);
  EXPECT_EQ(merged[0].ranks, (RankRuns{{0, 1}, {2, 3}}));
}

TEST(SubtreeRequests, RefusesAListOfAnInvalidRank) {
  SubtreeRequests basket(true);
  basket.Add({}, {wire::RequestList{.rank = 3}});
  std::vector<wire::RequestList> lists;
  std::vector<MergedRequest> merged;
  EXPECT_EQ(basket.TakeAll(3, {}, &lists, &merged).code(), StatusCode::kCorrupt);
}

RelayFrame FullFrame() {
  RelayFrame frame;
  frame.kind = RelayFrame::Kind::kResult;
  frame.process_set = 3;
  frame.epoch = 9;
  frame.round = 1ull << 40;
  frame.words = {1, ~0ull, 5};
  frame.requests = {{RequestFor("a", 4), {{0, 3}, {5, 8}}}, {RequestFor("\xff\n", 0), {{7, 8}}}};
  frame.lists = {wire::RequestList{.rank = 4, .leaving = true, .error = "why"}};
  frame.has_responses = true;
  frame.responses = {.process_set = 3, .epoch = 9, .round = 7, .report = "text"};
  return frame;
}

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(RelayFrame, SurvivesEncodingAndDecoding) {
  const RelayFrame frame = FullFrame();
  std::string bytes;
  EncodeFrame(frame, &bytes);
  const StatusOr<RelayFrame> back = DecodeFrame(Bytes(bytes), 8);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(*back, frame);
}

TEST(RelayFrame, RefusesEveryPrefixAndAnyTrailingByte) {
  std::string bytes;
  EncodeFrame(FullFrame(), &bytes);
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto frame = DecodeFrame(Bytes(bytes).first(length), 8);
    EXPECT_EQ(frame.status().code(), StatusCode::kCorrupt) << length;
  }
  EXPECT_EQ(DecodeFrame(Bytes(bytes + "x"), 8).status().code(), StatusCode::kCorrupt);
}

TEST(RelayFrame, SurvivesAnyByteChanged) {
  std::string bytes;
  EncodeFrame(FullFrame(), &bytes);
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int value : {0, 1, 0x7F, 0x80, 0xFF}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(value);
      const StatusOr<RelayFrame> frame = DecodeFrame(Bytes(changed), 8);
      if (!frame.ok()) continue;
      for (const MergedRequest& request : frame->requests) {
        for (const RankRun& run : request.ranks) {
          EXPECT_TRUE(0 <= run.begin && run.begin < run.end && run.end <= 8);
        }
      }
    }
  }
}

TEST(RelayFrame, RefusesInvalidRanks) {
  RelayFrame frame;
  frame.requests = {{RequestFor("a", 4), {{0, 9}}}};
  std::string bytes;
  EncodeFrame(frame, &bytes);
  EXPECT_FALSE(DecodeFrame(Bytes(bytes), 8).ok());
  EXPECT_TRUE(DecodeFrame(Bytes(bytes), 9).ok());
}

}  // namespace
}  // namespace horocache::control
