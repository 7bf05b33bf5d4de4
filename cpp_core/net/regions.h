// Memory for tensors that the ranks of one host share: a range for each rank, which every other rank has mapped too.
//
// A rank hands out pieces of its own range (RegionHeap) and tells the others, with each collective, where in it its
// tensors lie. Pages come when they are asked for and go when they are given back, so a range may be as large as the
// host's memory.
//
// The mapping outlives the arena that it came with, for tensors that the program keeps beyond shutdown.
// Shared: constant after it was made. Owns the mapping.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

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

  // A child of fork sees the rank's own tensors, as it sees every other tensor of its parent's.
  void Inherit(int rank) const;
  // Takes the pages of a piece now, so that a lack of memory is an error here and not SIGBUS later; false if there are
  // none. The piece begins and ends with pages.
  bool Commit(std::span<std::byte> piece) const;
  // Gives them back; they are zero when they are taken again.
  void Release(std::span<std::byte> piece) const;

 private:
  Regions(std::byte* base, size_t bytes, int ranks, bool shared)
      : base_(base), bytes_(bytes), total_(bytes * static_cast<size_t>(ranks)), shared_(shared) {}

  std::byte* const base_;
  const size_t bytes_;  // of one rank
  const size_t total_;
  const bool shared_;  // between processes
};

}  // namespace horocache::net
