// The addresses of one operation's tensors on every rank, in regions that all ranks of the host have mapped.
//
// A rank announces its tensors as runs of bytes in its own region; adjacent tensors are one run. The other ranks read
// each announcement once, check it against the size of the region, and then use only their copy.
//
// Threads: the driving thread. Owns its lists; the tensors' memory belongs to the regions. One object serves all
// operations, so that a steady state allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "data/backend.h"
#include "data/backends/segment_cursor.h"
#include "data/backends/shm/tile_slots.h"

namespace horocache::data {

class DirectBuffers {
 public:
  // Writes this rank's runs into its slot for `tile`. False if a tensor is not in this rank's region, or if there are
  // too many runs; the announced number of runs is then 0.
  static bool Announce(const std::vector<Segment>& segments, int64_t element_bytes, ShmPort* port, uint64_t tile);
  // Announces that this rank's tensors are not in its region.
  static void AnnounceNone(ShmPort* port, uint64_t tile) { port->runs(port->rank(), tile) = {}; }

  // Reads the announcements of all ranks for `count` elements. False if a rank's tensors are not in its region;
  // kCorrupt if an announcement is invalid.
  StatusOr<bool> Read(int64_t count, int64_t element_bytes, ShmPort* port, uint64_t tile);

  // Moves to `element` on all ranks; input() and output() then return its addresses.
  void Seek(int64_t element) {
    for (SegmentCursor& cursor : cursors_) cursor.Seek(element);
  }
  // Number of elements from there on that are contiguous on every rank, at most `limit`.
  int64_t Run(int64_t limit) const {
    for (const SegmentCursor& cursor : cursors_) limit = cursor.Run(limit);
    return limit;
  }
  const std::byte* input(int rank) const { return cursors_[static_cast<size_t>(rank)].input(); }
  std::byte* output(int rank) const { return cursors_[static_cast<size_t>(rank)].output(); }

 private:
  Status ReadRank(int rank, int64_t count, int64_t element_bytes, ShmPort* port, uint64_t tile);

  std::vector<std::vector<Segment>> segments_;  // by rank, with addresses in this process
  std::vector<SegmentCursor> cursors_;
};

}  // namespace horocache::data
