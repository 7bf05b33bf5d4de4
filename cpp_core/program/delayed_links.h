// Links that pretend to be slower than they are: for programs on machines that are not at hand.
//
// Note [Delays]
// A message passes through a port: of a pair of ranks, or of a host that several ranks share. A port passes one message
// at a time, in so many nanoseconds per byte and a gap; what has passed arrives after its latency, which messages do
// not share. The sender does not wait but for slots. This is the model of horocache/lang/cost.py.
//
// Threads: each rank's links belong to one; ports are shared.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "program/connections.h"
#include "program/wiring.h"

namespace horocache::program {

struct PortModel {
  double latency_ns = 0;
  double ns_per_byte = 0;
  double gap_ns = 0;  // of each message, for which the next one waits
};

struct DelayModel {
  std::vector<PortModel> ports;
  std::vector<int> port_of;  // by sender * ranks + receiver; -1: there is no delay
};

// What the links of all ranks share.
class Delays {
 public:
  Delays(DelayModel model, const Wirings& wirings, int slots);

  // When a message that is sent now arrives.
  int64_t Send(int from, int to, int64_t bytes, int64_t now_ns);
  // Of a message of a connection, named by its sender.
  std::atomic<int64_t>& arrival(int from, int end, uint64_t message);

 private:
  const DelayModel model_;
  const int ranks_, ends_, slots_;
  std::vector<std::atomic<int64_t>> free_ns_;     // by port: when it has passed what it was given
  std::vector<std::atomic<int64_t>> arrival_ns_;  // by sender, end and slot
};

class DelayedLinks final : public Connections {
 public:
  DelayedLinks(Connections* links, Delays* delays, const Wiring* wiring, int rank);

  std::byte* Claim(int strand) override { return links_.Claim(strand); }
  void Push(int strand, int64_t bytes) override;
  const std::byte* Peek(int strand, int64_t bytes) override;
  void Pop(int strand) override;

 private:
  Connections& links_;
  Delays& delays_;
  const Wiring& wiring_;
  const int rank_;
  std::vector<uint64_t> pushed_, popped_;  // by end
};

}  // namespace horocache::program
