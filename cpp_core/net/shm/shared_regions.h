// Memory for tensors that the ranks of one host share: one range for each rank, which every other rank has mapped, too.
//
// A rank allocates pieces of its own range (SharedHeap) and sends the other ranks, with each collective, the offsets of
// its tensors. Pages are allocated with a piece and freed with it, so a range may be as large as the host's memory.
//
// The mapping outlives its arena, for tensors that the program keeps after shutdown.
// Threads: any; constant after Inherit. Owns the mappings.
//
// Note [Regions after fork]
// A child of fork gets a private copy of its rank's own tensors at the same addresses: it reads the parent's values and
// writes its own. The ranges themselves are not mapped in a child. Instead, Inherit maps the rank's own range a second
// time, private and without access. Nothing ever touches this mapping, so it takes no pages, and fork copies nothing. A
// fork handler moves it, in the child, to the address of the range. The kernel copies a page when the child writes to
// it. A page that the child has not written shows later writes of the parent.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "base/unique_fd.h"

namespace horocache::net {

class SharedRegions {
 public:
  // Maps the part of the memory file `fd` from `offset` on, `bytes` for each of `ranks`; null if that fails.
  static std::shared_ptr<SharedRegions> Map(int fd, size_t offset, size_t bytes, int ranks);
  // For runtimes of one process; null if address space is short.
  static std::shared_ptr<SharedRegions> OnHeap(size_t bytes, int ranks);
  ~SharedRegions();
  SharedRegions(const SharedRegions&) = delete;
  SharedRegions& operator=(const SharedRegions&) = delete;

  std::span<std::byte> of(int rank) const { return {base_ + static_cast<size_t>(rank) * bytes_, bytes_}; }

  // Gives children of fork a copy of the rank's own tensors, as of all other memory of the parent. Called once.
  void Inherit(int rank);
  // Allocates the pages of a piece now, so that a shortage is an error here and not a SIGBUS later; false if memory is
  // short. The piece begins and ends at page boundaries.
  bool Commit(std::span<std::byte> piece) const;
  // Frees the pages. They are zero when they are committed again.
  void Release(std::span<std::byte> piece) const;

 private:
  SharedRegions(std::byte* base, size_t bytes, int ranks, UniqueFd file, size_t offset);
  static void BecomePrivateInChild();
  void BecomePrivate() const;

  std::byte* const base_;
  const size_t bytes_;  // of one rank
  const size_t total_;
  const bool shared_;  // true: between processes
  const pid_t process_;
  UniqueFd file_;                        // closed by Inherit
  const size_t offset_;                  // of the regions in the file
  std::byte* own_ = nullptr;             // this rank's range
  std::byte* copy_ = nullptr;            // a private mapping of that range, for children of fork
  mutable std::atomic<size_t> used_{0};  // the end of the highest piece ever committed, in bytes from own_
};

}  // namespace horocache::net
