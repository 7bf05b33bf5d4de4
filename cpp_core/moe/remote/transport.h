// How writes get into the blocks of ranks on other hosts.
//
// Note [Two ways to another host]
// Over MPI's one-sided operations, a write is one MPI_Put of the payload, MPI_Win_flush, MPI_Accumulate with
// MPI_REPLACE of the word, and MPI_Win_flush. Without the first flush the word could arrive before the payload: MPI
// orders no two puts. The accumulate writes the word as a whole, and the second flush sends it now. The target's
// program takes no part. A flush towards a rank that has died or is stopped may never return, and MPI cannot end it.
//
// Over a link, a write is one frame or several, which the target's carrier stores in the block. It arrives although the
// target's program computes, as long as the thread of its carrier lives.
//
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/message_link.h"
#include "net/mpi/communicator.h"

namespace horocache::moe {

// Memory of a payload.
struct RemoteBuffer {
  std::unique_ptr<std::byte[]> memory;
  size_t room = 0;
  size_t bytes = 0;
  std::span<std::byte> span() const { return {memory.get(), bytes}; }
};

// A write of this rank into the block of a rank on another host.
struct RemoteWrite {
  static constexpr size_t kNoWord = ~size_t{0};
  int peer = -1;
  size_t offset = 0;  // of the payload in the block
  RemoteBuffer payload;
  size_t word_offset = kNoWord;  // of a word that is stored after the payload; kNoWord: none
  uint64_t word = 0;
};

// Threads: one, the carrier's.
class Transport {
 public:
  virtual ~Transport() = default;

  // True if writes to the others are carried although a peer is lost.
  virtual bool survives_losses() const = 0;
  // True if every arrival is seen by Receive. If false, the reader of the block looks for itself.
  virtual bool sees_arrivals() const = 0;
  // Carries the rest of a write, or a part of it; `sent` is the bytes of the payload that have been carried. True if
  // the write is complete, and its payload can be reused.
  virtual StatusOr<bool> Carry(const RemoteWrite& write, size_t* sent) = 0;
  // Lets what comes from others arrive. True if something has that Receive sees.
  virtual StatusOr<bool> Receive() = 0;
  // Tells the others that this rank writes no more.
  virtual Status SayGoodbye() = 0;
  // True if all others have said goodbye, and this rank's goodbyes are sent.
  virtual bool AllHaveLeft() = 0;
};

// This rank's block, which a transport fills.
struct RemoteTarget {
  std::span<std::byte> block;
  std::shared_ptr<const void> owner;  // keeps it
};

// `peers`: by number in the group of `link`: true for the ranks on other hosts; the transport carries nothing else.
std::unique_ptr<Transport> MakeLinkTransport(std::unique_ptr<net::Link> link, const std::vector<bool>& peers,
                                             RemoteTarget target);
// All ranks of `comm` call it at the same time; MPI waits for them without a limit. The error of MPI if it has no
// one-sided operations for this memory.
StatusOr<std::unique_ptr<Transport>> MakeRmaTransport(net::Communicator comm, std::vector<std::string> names,
                                                      RemoteTarget target);

}  // namespace horocache::moe
