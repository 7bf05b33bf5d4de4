// Links that simulate slower links, to time programs for machines that are not available.
//
// Note [Delays]
// A message passes through a port, which belongs to a pair of ranks or to a host and then is shared by its ranks. A
// port passes one message at a time: the bytes of a message pass in bytes * ns_per_byte. The message arrives latency_ns
// later, and the port is free for the next message gap_ns later, so latencies overlap. The sender waits only for slots.
// horocache/lang/tuning/cost_model.py uses the same model.
//
// Threads: each rank's links belong to one thread; the ranks share the ports.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "program/connection_map.h"
#include "program/connections.h"

namespace horocache::program {

struct PortModel {
  double latency_ns = 0;
  double ns_per_byte = 0;
  double gap_ns = 0;  // per message; the next message waits for it
};

struct DelayModel {
  std::vector<PortModel> ports;
  std::vector<int> port_of;  // by sender * ranks + receiver; -1: no delay
};

// The state that the links of all ranks share.
class Delays {
 public:
  Delays(DelayModel model, const Wirings& wirings, int slots);

  // Occupies the port for a message that is sent now, and returns its arrival time.
  int64_t Send(int from, int to, int64_t bytes, int64_t now_ns);
  // Arrival time of message number `message` on a connection: sending end `end` of rank `from`.
  std::atomic<int64_t>& arrival(int from, int end, uint64_t message);

 private:
  const DelayModel model_;
  const int ranks_, ends_, slots_;
  std::vector<std::atomic<int64_t>> free_ns_;     // by port: when it has passed all its messages
  std::vector<std::atomic<int64_t>> arrival_ns_;  // by sender, end and slot
};

class DelayedLinks final : public Connections {
 public:
  DelayedLinks(Connections* links, Delays* delays, const Wiring* wiring, int rank);

  std::byte* Claim(int thread_block) override { return links_.Claim(thread_block); }
  void Push(int thread_block, int64_t bytes) override;
  const std::byte* Peek(int thread_block, int64_t bytes) override;
  void Pop(int thread_block) override;

 private:
  Connections& links_;
  Delays& delays_;
  const Wiring& wiring_;
  const int rank_;
  std::vector<uint64_t> pushed_, popped_;  // by end
};

}  // namespace horocache::program
