// Links between ranks on several hosts: through shared memory within a host, through MPI between hosts.
//
// Threads: the driving thread.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "data/backend.h"
#include "net/mpi/communicator.h"
#include "program/links.h"
#include "program/mpi_links.h"
#include "program/shm_links.h"

namespace horocache::program {

class HostLinks final : public Links {
 public:
  // `local` is the shared memory of this host's ranks. `comm` has all ranks, and `host_of` has the host of each.
  HostLinks(data::SharedArea local, net::Communicator comm, std::vector<int> host_of);

  int64_t MostSlotBytes(Protocol protocol, const Wirings& wirings, int slots) override;
  int64_t most_message_bytes() const override { return MpiLinks::kMostMessageBytes; }
  int usual_slots() const override { return kSlots; }
  void Begin(const LinkPlan& plan) override;
  bool Ready() override { return near_.Ready(); }
  int Behind() const override;
  bool Settled() override { return far_.Settled(); }
  void AddUnsettled(std::vector<int>* ranks) const override { far_.AddUnsettled(ranks); }
  void End() override { near_.End(); }
  void Ring() override { near_.Ring(); }
  bool must_poll() const override { return true; }
  LinkFailure failure() const override { return far_.failure(); }
  void Abandon() override { far_.Abandon(); }

  std::byte* Claim(int thread_block) override { return out(thread_block).Claim(thread_block); }
  void Push(int thread_block, int64_t bytes) override { out(thread_block).Push(thread_block, bytes); }
  const std::byte* Peek(int thread_block, int64_t bytes) override { return in(thread_block).Peek(thread_block, bytes); }
  const std::byte* Take(int thread_block, const std::byte* peeked) override {
    return in(thread_block).Take(thread_block, peeked);
  }
  void Pop(int thread_block) override { in(thread_block).Pop(thread_block); }
  bool Reaches(int thread_block, const std::byte* memory, int64_t bytes) const override {
    return out_[static_cast<size_t>(thread_block)]->Reaches(thread_block, memory, bytes);
  }
  void PushFrom(int thread_block, const std::byte* memory) override {
    out(thread_block).PushFrom(thread_block, memory);
  }
  bool streams(int thread_block) const override {
    return out_[static_cast<size_t>(thread_block)]->streams(thread_block);
  }
  uint64_t Popped(int thread_block) override { return out(thread_block).Popped(thread_block); }
  bool Retract(int thread_block, uint64_t message, const std::byte* memory, int64_t bytes) override {
    return out(thread_block).Retract(thread_block, message, memory, bytes);
  }

 private:
  // Slots per connection. Messages between hosts are short, so several must be in flight to fill the network.
  static constexpr int kSlots = 8;

  Connections& out(int thread_block) const { return *out_[static_cast<size_t>(thread_block)]; }
  Connections& in(int thread_block) const { return *in_[static_cast<size_t>(thread_block)]; }
  bool Near(int one, int other) const {
    return host_of_[static_cast<size_t>(one)] == host_of_[static_cast<size_t>(other)];
  }
  // Returns the wirings between the ranks of this host, by local rank; ends to other hosts are left unconnected.
  const Wirings& NearOf(const Wirings& wirings);

  const int rank_;
  const std::vector<int> host_of_;
  std::vector<int> here_;      // ranks of this host
  std::vector<int> local_of_;  // by rank: its index in here_; -1: on another host
  std::vector<bool> far_ranks_;
  ShmLinks near_;
  MpiLinks far_;
  std::map<const Wirings*, Wirings> near_wirings_;
  std::vector<Connections*> out_, in_;  // by thread block
};

}  // namespace horocache::program
