#include "program/host_links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "program/link_runs.h"
#include "program/ring.h"

namespace horocache::program {
namespace {

// The messages between the ranks. Some sends complete at once, others wait for the receiver. Completions are seen
// late.
class Network {
 public:
  explicit Network(uint64_t seed) : random_(seed) {}

  uintptr_t Send(std::tuple<int, int, int> name, const void* data, int bytes) {
    Transfer& one = transfers_.emplace_back();
    one.data = const_cast<std::byte*>(static_cast<const std::byte*>(data));
    one.bytes = bytes;
    one.complete = random_() % 2 == 0;  // the library has a copy
    if (one.complete) one.kept.assign(one.data, one.data + bytes);
    return Post(name, &Queue::sends);
  }

  uintptr_t Receive(std::tuple<int, int, int> name, void* data, int bytes) {
    Transfer& one = transfers_.emplace_back();
    one.data = static_cast<std::byte*>(data);
    one.bytes = bytes;
    return Post(name, &Queue::receives);
  }

  bool Complete(uintptr_t request, int* bytes) {
    const Transfer& one = transfers_[request - 1];
    if (!one.complete || random_() % 3 == 0) return false;
    *bytes = one.bytes;
    --open_;
    return true;
  }

  int open() const { return open_; }
  // The most messages of one connection that waited for their receiver at the same time.
  size_t most_waiting() const { return most_waiting_; }

 private:
  struct Transfer {
    std::byte* data = nullptr;
    std::vector<std::byte> kept;
    int bytes = 0;
    bool complete = false;
  };
  struct Queue {
    std::deque<size_t> sends, receives;
  };

  uintptr_t Post(std::tuple<int, int, int> name, std::deque<size_t> Queue::* line) {
    Queue& queue = queues_[name];
    (queue.*line).push_back(transfers_.size() - 1);
    ++open_;
    if (!queue.sends.empty() && !queue.receives.empty()) {
      Transfer& from = transfers_[queue.sends.front()];
      Transfer& to = transfers_[queue.receives.front()];
      EXPECT_LE(from.bytes, to.bytes);
      if (from.bytes > 0) {
        std::memcpy(to.data, from.kept.empty() ? from.data : from.kept.data(), static_cast<size_t>(from.bytes));
      }
      to.bytes = from.bytes;
      from.complete = to.complete = true;
      queue.sends.pop_front();
      queue.receives.pop_front();
    }
    most_waiting_ = std::max(most_waiting_, queue.sends.size());
    return transfers_.size();
  }

  std::mt19937_64 random_;
  std::deque<Transfer> transfers_;
  std::map<std::tuple<int, int, int>, Queue> queues_;  // by sender, receiver and tag
  int open_ = 0;                                       // requests whose completion no rank has seen
  size_t most_waiting_ = 0;
};

// The part of MPI that links use, for one rank.
class NetworkMpi final : public net::Mpi {
 public:
  NetworkMpi(Network* network, int rank, int size) : network_(*network), rank_(rank), size_(size) {}

  int Rank(net::MpiComm) const override { return rank_; }
  int Size(net::MpiComm) const override { return size_; }
  Status Isend(const void* data, int count, net::MpiType, int to, int tag, net::MpiComm,
               net::MpiRequest* request) override {
    request->handle = network_.Send({rank_, to, tag}, data, count);
    return Status::Ok();
  }
  Status Irecv(void* data, int count, net::MpiType, int from, int tag, net::MpiComm,
               net::MpiRequest* request) override {
    request->handle = network_.Receive({from, rank_, tag}, data, count);
    return Status::Ok();
  }
  StatusOr<bool> Test(net::MpiRequest* request, Received* received) override {
    Received ignored;
    if (!network_.Complete(request->handle, &(received == nullptr ? ignored : *received).count)) return false;
    request->handle = 0;
    return true;
  }
  bool IsNull(const net::MpiRequest& request) const override { return request.handle == 0; }
  net::MpiRequest null_request() const override { return {}; }
  net::MpiType byte() const override { return {}; }

  net::MpiAbi abi() const override { return net::MpiAbi::kStandard; }
  const std::string& path() const override { return path_; }
  std::string Version() const override { return path_; }
  bool Initialized() const override { return true; }
  bool Finalized() const override { return false; }
  StatusOr<net::MpiThreads> InitThread(net::MpiThreads) override { return None(); }
  net::MpiThreads QueryThread() const override { return net::MpiThreads::kMultiple; }
  Status Finalize() override { return None(); }
  net::MpiComm world() const override { return {}; }
  Status StartDup(net::MpiComm, net::MpiComm*, net::MpiRequest*) override { return None(); }
  Status CreateGroup(net::MpiComm, const std::vector<int>&, int, net::MpiComm*) override { return None(); }
  Status ReturnErrors(net::MpiComm) override { return None(); }
  Status Free(net::MpiComm*) override { return None(); }
  net::MpiType TypeOf(DType) const override { return {}; }
  net::MpiOp OpOf(net::MpiReduction) const override { return {}; }
  StatusOr<net::MpiOp> MakeOp(net::MpiFold) override { return None(); }
  Status FreeOp(net::MpiOp*) override { return None(); }
  void* in_place() const override { return nullptr; }
  Status Iallreduce(const void*, void*, int, net::MpiType, net::MpiOp, net::MpiComm, net::MpiRequest*) override {
    return None();
  }
  Status Ireduce(const void*, void*, int, net::MpiType, net::MpiOp, int, net::MpiComm, net::MpiRequest*) override {
    return None();
  }
  Status Ibcast(void*, int, net::MpiType, int, net::MpiComm, net::MpiRequest*) override { return None(); }
  Status Iallgatherv(const void*, int, void*, const int*, const int*, net::MpiType, net::MpiComm,
                     net::MpiRequest*) override {
    return None();
  }
  Status Ialltoallv(const void*, const int*, const int*, void*, const int*, const int*, net::MpiType, net::MpiComm,
                    net::MpiRequest*) override {
    return None();
  }
  Status Igatherv(const void*, int, void*, const int*, const int*, net::MpiType, int, net::MpiComm,
                  net::MpiRequest*) override {
    return None();
  }
  Status Iscatterv(const void*, const int*, const int*, void*, int, net::MpiType, int, net::MpiComm,
                   net::MpiRequest*) override {
    return None();
  }
  Status Ibarrier(net::MpiComm, net::MpiRequest*) override { return None(); }
  Status CreateWindow(void*, size_t, net::MpiComm, net::MpiWin*) override { return None(); }
  Status FreeWindow(net::MpiWin*) override { return None(); }
  Status Put(const void*, int, int, size_t, net::MpiWin) override { return None(); }
  Status StoreWord(const uint64_t*, int, size_t, net::MpiWin) override { return None(); }
  Status FlushWindow(int, net::MpiWin) override { return None(); }
  StatusOr<bool> Improbe(int, net::MpiComm, net::MpiMessage*, Received*) override { return None(); }
  Status Imrecv(void*, int, net::MpiType, net::MpiMessage*, net::MpiRequest*) override { return None(); }

 private:
  static Status None() { return {StatusCode::kUnsupported, "links need none of it"}; }

  Network& network_;
  const int rank_, size_;
  const std::string path_ = "the test's own";
};

// Ranks on several hosts, with their memory, MPI and links.
struct Hosts {
  Hosts(std::vector<int> host_of, uint64_t seed) : network(seed) {
    const auto size = static_cast<int>(host_of.size());
    std::vector<int> ranks_of(static_cast<size_t>(size), 0);
    for (const int host : host_of) ++ranks_of[static_cast<size_t>(host)];
    for (const int ranks : ranks_of) memory.push_back(ranks > 0 ? std::make_unique<Host>(ranks) : nullptr);
    std::vector<int> next(static_cast<size_t>(size), 0);
    for (int rank = 0; rank < size; ++rank) {
      const auto host = static_cast<size_t>(host_of[static_cast<size_t>(rank)]);
      mpi.push_back(std::make_unique<NetworkMpi>(&network, rank, size));
      links.push_back(std::make_unique<HostLinks>(memory[host]->area(next[host]++),
                                                  net::Communicator::Borrow(mpi.back().get(), {}), host_of));
    }
  }
  std::vector<Links*> all() const {
    std::vector<Links*> all;
    for (const auto& one : links) all.push_back(one.get());
    return all;
  }

  Network network;
  std::vector<std::unique_ptr<Host>> memory;
  std::vector<std::unique_ptr<NetworkMpi>> mpi;
  std::vector<std::unique_ptr<HostLinks>> links;
};

TEST(HostLinks, CarryManyOperationsThroughMemoryAndMessages) {
  const std::vector<std::vector<int>> layouts = {{0, 1}, {0, 0, 1, 1}, {0, 1, 0, 1, 1}, {0, 1, 2}};
  for (const std::vector<int>& layout : layouts) {
    const auto ranks = static_cast<int>(layout.size());
    const Program program = Ring(ranks, 2);
    for (const Protocol protocol : {Protocol::kSimple, Protocol::kLL128, Protocol::kDirect}) {
      for (const int slots : {1, 2, 8}) {
        Hosts hosts(layout, static_cast<uint64_t>(slots));
        for (const int64_t elements : {1, 7, 64, 333}) {
          RunOperations(hosts.all(), program, {protocol, slots, 240, elements}, 7, 11);
        }
        EXPECT_EQ(hosts.network.open(), 0);
      }
    }
  }
}

TEST(HostLinks, LimitTheMessagesToABusyReceiver) {
  for (const int slots : {1, 2, 3, 8}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      Hosts hosts({0, 1, 2}, seed);
      RunOperations(hosts.all(), Ring(3, 1), {Protocol::kSimple, slots, 64, 3'000}, 2, seed);
      EXPECT_EQ(hosts.network.open(), 0);
      EXPECT_GT(hosts.network.most_waiting(), 0U);
      EXPECT_LE(hosts.network.most_waiting(), static_cast<size_t>(slots + std::max(1, slots / 2)));
    }
  }
}

TEST(HostLinks, OfferShortMessagesAndManySlots) {
  Hosts hosts({0, 1}, 1);
  EXPECT_EQ(hosts.links[0]->most_message_bytes(), MpiLinks::kMostMessageBytes);
  EXPECT_GT(hosts.links[0]->usual_slots(), 4);
  EXPECT_TRUE(hosts.links[0]->must_poll());
}

TEST(HostLinks, RefuseAMessageOfAnotherLength) {
  Hosts hosts({0, 1}, 1);
  const Program program = Ring(2, 1);
  const Wirings wirings = WireUp(program);
  const LinkPlan plan{&wirings, Protocol::kSimple, 2, 64, 1};
  for (Links* links : hosts.all()) links->Begin(plan);
  ASSERT_NE(hosts.links[0]->Claim(0), nullptr);
  hosts.links[0]->Push(0, 8);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(hosts.links[1]->Peek(0, 16), nullptr);
  EXPECT_EQ(hosts.links[1]->failure().status.message(), "a message of 8 bytes came, where one of 16 was due");
  EXPECT_EQ(hosts.links[1]->failure().peer, 0);
}

}  // namespace
}  // namespace horocache::program
