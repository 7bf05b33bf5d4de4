// Memory for tensors that the ranks of one host share: a range for each rank, which every other rank has mapped too.
//
// A rank hands out pieces of its own range (RegionHeap) and tells the others, with each collective, where in it its
// tensors lie. Pages come when they are asked for and go when they are given back, so a range may be as large as the
// host's memory.
//
// The mapping outlives the arena that it came with, for tensors that the program keeps beyond shutdown.
// Shared: constant after Inherit. Owns the mappings.
//
// Note [Regions after fork]
// A child of fork gets a private copy of its rank's own tensors at their addresses: it reads the parent's values and
// writes its own. The ranges themselves are not mapped in a child. Inherit maps the rank's own range a second time,
// private and without access, where nothing ever touches it; so no page of it is taken, and fork copies nothing. A
// handler of fork moves this mapping in the child to the address of the range. Pages are copied when the child writes
// them. A page that the child has not written shows what the parent has written since.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "base/unique_fd.h"

namespace horocache::net {

class Regions {
 public:
  // The part of the memory file `fd` from `offset` on, `bytes` for each of `ranks`; null if it cannot be mapped.
  static std::shared_ptr<Regions> Map(int fd, size_t offset, size_t bytes, int ranks);
  // For runtimes of one process; null if there is no address space.
  static std::shared_ptr<Regions> OnHeap(size_t bytes, int ranks);
  ~Regions();
  Regions(const Regions&) = delete;
  Regions& operator=(const Regions&) = delete;

  std::span<std::byte> of(int rank) const { return {base_ + static_cast<size_t>(rank) * bytes_, bytes_}; }

  // Gives children of fork a copy of the rank's own tensors, as they have of all memory of their parent's. Called once.
  void Inherit(int rank);
  // Takes the pages of a piece now, so that a lack of memory is an error here and not SIGBUS later; false if there are
  // none. The piece begins and ends with pages.
  bool Commit(std::span<std::byte> piece) const;
  // Gives them back; they are zero when they are taken again.
  void Release(std::span<std::byte> piece) const;

 private:
  Regions(std::byte* base, size_t bytes, int ranks, UniqueFd file, size_t offset);
  static void BecomePrivateInChild();
  void BecomePrivate() const;

  std::byte* const base_;
  const size_t bytes_;  // of one rank
  const size_t total_;
  const bool shared_;  // between processes
  const pid_t process_;
  UniqueFd file_;                        // until Inherit
  const size_t offset_;                  // in the file
  std::byte* own_ = nullptr;             // the range of the rank
  std::byte* copy_ = nullptr;            // that range, for children of fork
  mutable std::atomic<size_t> used_{0};  // bytes of it that have ever been committed, from its beginning on
};

}  // namespace horocache::net
