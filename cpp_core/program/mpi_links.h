// Connections between ranks of different hosts, over MPI messages.
//
// Note [Slots between hosts]
// The receiver posts a receive for each free slot, and the sender has one send buffer per slot. So a connection never
// has less room than one with slots in shared memory, for which programs are proved.
//
// MPI may accept a message long before its receive is posted and buffer it, so slots alone do not bound the memory that
// a busy receiver needs. On a connection with more messages than a window, the receiver therefore sends a credit for
// every `share` messages that it pops, and the sender stays within the window. With 8 slots, the share is 4 and the
// window 12: counted from 0, message 12 needs the first credit and message 16 the second. The receiver sends only
// the credits that the sender needs before its last message, so none is left over at the end.
//
// A connection has two tags of its own, one for data and one for credits, so its messages stay in order, also across
// operations. The number of operations in flight is bounded, too: a rank can be ahead only by operations that the other
// ranks have submitted.
//
// Threads: the driving thread. If the job is abandoned, open requests and their memory are left to MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/status.h"
#include "net/mpi/communicator.h"
#include "program/connections.h"
#include "program/links.h"

namespace horocache::program {

class MpiLinks final : public Connections {
 public:
  // Longest message in bytes: short enough that MPI libraries send it eagerly, see Note [Messages between hosts] in
  // data/backends/mpi.
  static constexpr int64_t kMostMessageBytes = 60 << 10;

  // `comm` has the ranks of the programs and is used for nothing else.
  explicit MpiLinks(net::Communicator comm);
  ~MpiLinks() override;

  // Uses only the ends whose peer is far; `far` is by rank.
  void Begin(const LinkPlan& plan, const std::vector<bool>& far);
  // Returns true if all sends are complete.
  bool Settled();
  void AddUnsettled(std::vector<int>* ranks) const;
  const LinkFailure& failure() const { return failure_; }
  void Abandon();

  std::byte* Claim(int thread_block) override;
  void Push(int thread_block, int64_t bytes) override;
  const std::byte* Peek(int thread_block, int64_t bytes) override;
  void Pop(int thread_block) override;
  bool streams(int) const override { return false; }  // the library reads it next

 private:
  struct alignas(kCacheLine) Line {
    std::byte bytes[kCacheLine];
  };
  // One end of a connection, in the current operation.
  struct End {
    Endpoint wire;
    uint64_t count = 0;                     // messages pushed or popped
    uint64_t asked = 0;                     // messages whose receives were posted
    uint64_t all = 0;                       // messages of the operation
    uint64_t credits = 0;                   // credits sent (by the receiver) or received (by the sender)
    uint64_t all_credits = 0;               // credits of the operation
    std::vector<net::MpiRequest> requests;  // by slot; null if none is open
    std::vector<net::MpiRequest> credit;    // sender: the receive of the next credit; receiver: sends of credits
    std::vector<int64_t> came;              // bytes received, by slot; -1: not yet
    std::vector<Line> memory;               // of the slots
  };

  void Prepare(std::vector<End>* ends, const std::vector<Endpoint>& wires, const std::vector<bool>& far);
  uint64_t slots() const { return static_cast<uint64_t>(plan_.slots); }
  // Messages per credit.
  uint64_t share() const { return slots() > 1 ? slots() / 2 : 1; }
  // Messages that may be sent without a credit.
  uint64_t window() const { return slots() + share(); }
  size_t SlotOf(uint64_t message) const { return message % slots(); }
  std::byte* Memory(End* end, size_t slot) const { return end->memory[slot * slot_lines_].bytes; }
  // Returns true if the request is complete or null.
  bool Complete(const End& end, net::MpiRequest* request, net::Mpi::Received* received);
  void Receive(End* end);
  void AwaitCredit(End* end);
  bool MayPush(End* end);
  bool Failed(const End& end, const Status& status);
  bool UnderWay() const;

  net::Communicator comm_;
  LinkPlan plan_;
  size_t slot_lines_ = 0;
  std::vector<End> out_, in_;  // by thread block
  LinkFailure failure_;
};

}  // namespace horocache::program
