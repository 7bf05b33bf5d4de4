// Connections between ranks of different hosts: messages of MPI.
//
// Note [Slots between hosts]
// The receiver asks for as many messages to come as there are slots, and the sender keeps as many until the library has
// taken them: never less room than slots in one place, for which programs are proved. A library may take a message long
// before it is asked for and keep it, so slots alone would not bound what piles up with a receiver that is busy. On a
// connection with more messages than a window, the receiver therefore sends a credit for every so many that it popped,
// and the sender stays within them; only those credits are sent that the sender waits for before its last message, so
// none is left over. A connection has two tags of its own: messages of one are in order, also those of operations that
// follow each other. What begins with an operation is bounded, too: a rank can be ahead only by what the others have
// submitted.
//
// Role: lanes. What is under way when the job is given up is left to the library, with its memory.
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
  // So long that libraries send them at once, see Note [Messages between hosts] in data/backends/mpi.
  static constexpr int64_t kMostMessageBytes = 60 << 10;

  // Of the ranks of the programs, for nothing else.
  explicit MpiLinks(net::Communicator comm);
  ~MpiLinks() override;

  // Only the ends whose peer is `far` are used.
  void Begin(const LinkPlan& plan, const std::vector<bool>& far);
  // Everything that was sent has left.
  bool Settled();
  void AddUnsettled(std::vector<int>* ranks) const;
  const LinkFailure& failure() const { return failure_; }
  void Abandon();

  std::byte* Claim(int strand) override;
  void Push(int strand, int64_t bytes) override;
  const std::byte* Peek(int strand, int64_t bytes) override;
  void Pop(int strand) override;
  bool streams(int) const override { return false; }  // the library reads it next

 private:
  struct alignas(kCacheLine) Line {
    std::byte bytes[kCacheLine];
  };
  // One end of a connection, in this operation.
  struct End {
    Endpoint wire;
    uint64_t count = 0;                     // messages that were pushed or popped
    uint64_t asked = 0;                     // messages that receives were started for
    uint64_t all = 0;                       // messages
    uint64_t credits = 0;                   // that are sent, or have come
    uint64_t all_credits = 0;               // that will be
    std::vector<net::MpiRequest> requests;  // by slot; null where nothing is under way
    std::vector<net::MpiRequest> credit;    // that is awaited; or those that were sent
    std::vector<int64_t> came;              // bytes, by slot; -1: not yet
    std::vector<Line> memory;
  };

  void Prepare(std::vector<End>* ends, const std::vector<Endpoint>& wires, const std::vector<bool>& far);
  uint64_t slots() const { return static_cast<uint64_t>(plan_.slots); }
  // Messages for which there is one credit.
  uint64_t share() const { return slots() > 1 ? slots() / 2 : 1; }
  uint64_t window() const { return slots() + share(); }
  size_t SlotOf(uint64_t message) const { return message % slots(); }
  std::byte* Memory(End* end, size_t slot) const { return end->memory[slot * slot_lines_].bytes; }
  // True when it is complete, or there is none.
  bool Complete(const End& end, net::MpiRequest* request, net::Mpi::Received* received);
  void Receive(End* end);
  void AwaitCredit(End* end);
  bool MayPush(End* end);
  bool Failed(const End& end, const Status& status);
  bool UnderWay() const;

  net::Communicator comm_;
  LinkPlan plan_;
  size_t slot_lines_ = 0;
  std::vector<End> out_, in_;  // by strand
  LinkFailure failure_;
};

}  // namespace horocache::program
