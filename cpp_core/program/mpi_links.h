// Connections between ranks of different hosts: messages of MPI.
//
// Note [Slots between hosts]
// The receiver has asked for as many of the messages to come as there are slots, so what is sent is taken from the
// network at once; the sender keeps as many messages until the library has taken them. That is never less room than
// slots in one place, for which programs are proved. A connection has a tag of its own: messages of one are in order,
// also those of operations that follow each other.
//
// Role: lanes. What is under way when the job is given up is left to the library, with its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/mpi/communicator.h"
#include "program/connections.h"
#include "program/links.h"

namespace horocache::program {

class MpiLinks final : public Connections {
 public:
  // So long that libraries send them at once, see Note [Messages between hosts] in data/backends/mpi.
  static constexpr int64_t kMostSlotBytes = 60 << 10;

  // Of the ranks of the programs, for nothing else.
  explicit MpiLinks(net::Communicator comm);
  ~MpiLinks() override;

  // Only the ends that `far` names, by peer, are used.
  void Begin(const LinkPlan& plan, const std::vector<bool>& far);
  // Everything that was pushed has left.
  bool Settled();
  const Status& status() const { return status_; }

  std::byte* Claim(int strand) override;
  void Push(int strand, int64_t bytes) override;
  const std::byte* Peek(int strand, int64_t bytes) override;
  void Pop(int strand) override;

 private:
  // One end of a connection, in this operation. Slots that are not used have no request.
  struct End {
    Endpoint wire;
    uint64_t count = 0;                     // messages that were pushed or popped
    uint64_t asked = 0;                     // messages that receives were started for
    uint64_t all = 0;                       // that will come
    std::vector<net::MpiRequest> requests;  // by slot
    std::vector<int64_t> came;              // bytes, by slot; -1: not yet
    std::vector<std::byte> memory;
  };

  void Prepare(std::vector<End>* ends, const std::vector<Endpoint>& wires, const std::vector<bool>& far);
  size_t SlotOf(uint64_t message) const { return message % static_cast<uint64_t>(plan_.slots); }
  std::byte* Memory(End* end, size_t slot) const { return end->memory.data() + slot * SlotBytes(); }
  size_t SlotBytes() const { return static_cast<size_t>(plan_.slot_bytes); }
  // True when it is complete, or there is none.
  bool Complete(net::MpiRequest* request, net::Mpi::Received* received);
  void Receive(End* end);
  bool Fail(const Status& status);
  bool UnderWay() const;

  net::Communicator comm_;
  LinkPlan plan_;
  std::vector<End> out_, in_;  // by strand
  Status status_;
};

}  // namespace horocache::program
