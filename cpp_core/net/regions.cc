#include "net/regions.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "base/memory.h"

namespace horocache::net {
namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // Linux 5.14
#endif
// In steps: a signal ends the call, which then begins again.
constexpr size_t kCommitStep = size_t{4} << 20;

}  // namespace

std::shared_ptr<Regions> Regions::Map(int fd, size_t offset, size_t bytes, int ranks) {
  const size_t total = bytes * static_cast<size_t>(ranks);
  void* const memory = MapReservation(fd, offset, total);
  if (memory == nullptr) return nullptr;
  return std::shared_ptr<Regions>(new Regions(static_cast<std::byte*>(memory), bytes, ranks, true));
}

std::shared_ptr<Regions> Regions::OnHeap(size_t bytes, int ranks) {
  void* memory = mmap(nullptr, bytes * static_cast<size_t>(ranks), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  return std::shared_ptr<Regions>(new Regions(static_cast<std::byte*>(memory), bytes, ranks, false));
}

Regions::~Regions() { munmap(base_, total_); }

void Regions::Inherit(int rank) const {
  // A refusal leaves it unmapped in children.
  if (shared_) static_cast<void>(madvise(of(rank).data(), bytes_, MADV_DOFORK));
}

bool Regions::Commit(std::span<std::byte> piece) const {
  PreferHugePages(piece.data(), piece.size());
  for (size_t at = 0; at < piece.size();) {
    const size_t step = std::min(kCommitStep, piece.size() - at);
    if (madvise(piece.data() + at, step, MADV_POPULATE_WRITE) == 0) {
      at += step;
    } else if (errno == EINVAL) {
      return true;  // an older kernel: pages come with the first access
    } else if (errno != EINTR && errno != EAGAIN) {
      return false;
    }
  }
  return true;
}

void Regions::Release(std::span<std::byte> piece) const {
  // Where that is refused, the memory goes with the mapping.
  static_cast<void>(madvise(piece.data(), piece.size(), shared_ ? MADV_REMOVE : MADV_DONTNEED));
}

}  // namespace horocache::net
