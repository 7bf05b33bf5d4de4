// The windows of a rank (moe/window.h): their blocks in its region, and what ends them.
//
// Note [Opening a window]
// All ranks of a process set open a window together. Each allocates a block of its own region, the ranks exchange the
// offsets of the blocks by an allgather, and each then connects to the blocks of the others. If some are on other
// hosts, the ranks also make a communicator and a transport together (host_transport.h). A rank that closes a window
// tells the others; a block is freed when all of them have closed.
//
// Threads: any; one mutex.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "moe/remote/transport.h"
#include "moe/window.h"
#include "net/shm/shared_heap.h"

namespace horocache::runtime {

// A process set as a window sees it.
struct WindowMembers {
  uint32_t process_set = 0;
  std::vector<int> ranks;        // of the job, by rank of the set
  std::vector<int> local_ranks;  // the same on this host; -1: on another host
  int rank = 0;                  // this rank's number in the set
  // A rank of the set on another host; -1: none.
  int far_rank() const;
};

// This rank's block of a window that is not connected yet.
struct WindowBlock {
  std::shared_ptr<std::byte> memory;
  int64_t offset = 0;  // in this rank's region; 0 if no other rank of the set is on this host, and the memory private
  moe::Geometry geometry;
  WindowMembers members;
  // The memory, for a transport to fill.
  moe::RemoteTarget Target() const;
};

class Windows {
 public:
  // `heap` null: this rank has no shared memory for windows. `spin_ns`: see moe::Window.
  Windows(std::shared_ptr<net::SharedHeap> heap, std::shared_ptr<const net::SharedRegions> regions, int64_t spin_ns,
          std::shared_ptr<moe::ExchangeCounters> counters);
  ~Windows();

  // kUnsupported without shared memory with the members on this host; kOutOfMemory with the size and the knob to
  // change.
  StatusOr<WindowBlock> Allocate(moe::Geometry geometry, WindowMembers members) HC_EXCLUDES(mutex_);
  // `offsets`: of the blocks of all members. `transport`: to members on other hosts; null: there are none.
  StatusOr<std::shared_ptr<moe::Window>> Connect(WindowBlock block, const std::vector<int64_t>& offsets,
                                                 std::unique_ptr<moe::Transport> transport) HC_EXCLUDES(mutex_);
  // The calls of other windows that ranks have begun and this rank has not: "; rank 1 is in layer 'b' (forward)".
  // Empty: none is known.
  std::string CallsElsewhere(const moe::Window& waiting) HC_EXCLUDES(mutex_);
  // A rank of the job is lost.
  void Lose(int rank) HC_EXCLUDES(mutex_);
  // Closes all windows; later calls fail.
  void Close() HC_EXCLUDES(mutex_);

 private:
  struct Open {
    std::shared_ptr<moe::Window> window;
    std::vector<int> ranks;
  };
  // The memory of a window between the ranks of this host.
  StatusOr<WindowBlock> AllocateShared(int64_t bytes, moe::Geometry geometry, WindowMembers members)
      HC_REQUIRES(mutex_);
  void Sweep() HC_REQUIRES(mutex_);

  const std::shared_ptr<net::SharedHeap> heap_;
  const std::shared_ptr<const net::SharedRegions> regions_;
  const int64_t spin_ns_;
  const std::shared_ptr<moe::ExchangeCounters> counters_;
  Mutex mutex_;
  std::vector<Open> windows_ HC_GUARDED_BY(mutex_);
  std::vector<int> lost_ HC_GUARDED_BY(mutex_);  // ranks of the job
  bool closed_ HC_GUARDED_BY(mutex_) = false;
};

}  // namespace horocache::runtime
