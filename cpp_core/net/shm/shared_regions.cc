#include "net/shm/shared_regions.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "base/mutex.h"

namespace horocache::net {
namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // Linux 5.14
#endif
// Bytes per call, because a signal ends the call, which then begins again.
constexpr size_t kCommitStep = size_t{4} << 20;

// The regions that children of fork inherit. One list per process, because a fork handler takes no argument.
struct Inherited {
  Mutex mutex;
  std::vector<const SharedRegions*> all HC_GUARDED_BY(mutex);
};

Inherited& inherited() {
  static auto* const list = new Inherited;  // never destroyed: a process may fork while it ends
  return *list;
}

// The forking thread holds the mutex over fork, in the parent and in the child.
void LockInherited() HC_NO_THREAD_SAFETY_ANALYSIS { inherited().mutex.Lock(); }
void UnlockInherited() HC_NO_THREAD_SAFETY_ANALYSIS { inherited().mutex.Unlock(); }

}  // namespace

SharedRegions::SharedRegions(std::byte* base, size_t bytes, int ranks, UniqueFd file, size_t offset)
    : base_(base),
      bytes_(bytes),
      total_(bytes * static_cast<size_t>(ranks)),
      shared_(file.get() >= 0),
      process_(getpid()),
      file_(std::move(file)),
      offset_(offset) {}

std::shared_ptr<SharedRegions> SharedRegions::Map(int fd, size_t offset, size_t bytes, int ranks) {
  const size_t total = bytes * static_cast<size_t>(ranks);
  void* const memory = MapReservation(fd, offset, total);
  if (memory == nullptr) return nullptr;
  UniqueFd file(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (file.get() < 0) {
    munmap(memory, total);
    return nullptr;
  }
  return std::shared_ptr<SharedRegions>(
      new SharedRegions(static_cast<std::byte*>(memory), bytes, ranks, std::move(file), offset));
}

std::shared_ptr<SharedRegions> SharedRegions::OnHeap(size_t bytes, int ranks) {
  void* memory = mmap(nullptr, bytes * static_cast<size_t>(ranks), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  return std::shared_ptr<SharedRegions>(
      new SharedRegions(static_cast<std::byte*>(memory), bytes, ranks, UniqueFd(), 0));
}

SharedRegions::~SharedRegions() {
  if (getpid() != process_) return;  // in a child of fork, other memory may lie at these addresses
  if (copy_ != nullptr) {
    MutexLock lock(inherited().mutex);
    std::erase(inherited().all, this);
    munmap(copy_, bytes_);
  }
  munmap(base_, total_);
}

void SharedRegions::Inherit(int rank) {
  if (!shared_) return;
  const auto at = static_cast<off_t>(offset_ + static_cast<size_t>(rank) * bytes_);
  void* copy = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE, file_.get(), at);
  file_.Close();
  // Without enough address space, children do not have the tensors.
  if (copy == MAP_FAILED) return;
  static_cast<void>(madvise(copy, bytes_, MADV_DONTDUMP));  // otherwise a child's core dump contains the whole range
  own_ = of(rank).data();
  copy_ = static_cast<std::byte*>(copy);
  static const int handled = pthread_atfork(&LockInherited, &UnlockInherited, &SharedRegions::BecomePrivateInChild);
  if (handled != 0) return;
  MutexLock lock(inherited().mutex);
  inherited().all.push_back(this);
}

void SharedRegions::BecomePrivateInChild() HC_NO_THREAD_SAFETY_ANALYSIS {
  for (const SharedRegions* regions : inherited().all) regions->BecomePrivate();
  inherited().all.clear();  // the child's own children inherit its mapping as it is
  UnlockInherited();
}

void SharedRegions::BecomePrivate() const {
  const size_t used = used_;
  if (used == 0 || mremap(copy_, used, used, MREMAP_MAYMOVE | MREMAP_FIXED, own_) == MAP_FAILED) return;
  // A system without overcommit may refuse the memory that the child could write.
  if (mprotect(own_, used, PROT_READ | PROT_WRITE) != 0) static_cast<void>(mprotect(own_, used, PROT_READ));
}

bool SharedRegions::Commit(std::span<std::byte> piece) const {
  if (own_ != nullptr) {
    const auto end = static_cast<size_t>(piece.data() + piece.size() - own_);
    for (size_t used = used_; used < end && !used_.compare_exchange_weak(used, end);) continue;
  }
  PreferHugePages(piece.data(), piece.size());
  for (size_t at = 0; at < piece.size();) {
    const size_t step = std::min(kCommitStep, piece.size() - at);
    if (madvise(piece.data() + at, step, MADV_POPULATE_WRITE) == 0) {
      at += step;
    } else if (errno == EINVAL) {
      return true;  // an older kernel allocates pages on the first access
    } else if (errno != EINTR && errno != EAGAIN) {
      return false;
    }
  }
  return true;
}

void SharedRegions::Release(std::span<std::byte> piece) const {
  // If the call fails, the memory is freed with the mapping.
  static_cast<void>(madvise(piece.data(), piece.size(), shared_ ? MADV_REMOVE : MADV_DONTNEED));
}

}  // namespace horocache::net
