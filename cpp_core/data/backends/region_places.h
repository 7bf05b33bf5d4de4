// Where the tensors of one operation lie, on every rank: in regions, which all of them have mapped.
//
// A rank announces its tensors as runs of bytes in its own region; neighbours are one run. The others check what it
// announced against the size of the region, and read it once: from then on only these copies count.
//
// Role: lanes. Ownership: of the lists; the memory belongs to the regions. Used again for each operation, so that
// steady state allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "data/backend.h"
#include "data/backends/segment_cursor.h"
#include "data/backends/shm_port.h"

namespace horocache::data {

class RegionPlaces {
 public:
  // Writes this rank's runs into its slot of `tile`; false, and none, if a tensor is not in its region or there are too
  // many runs.
  static bool Announce(const std::vector<Segment>& segments, int64_t element_bytes, ShmPort* port, uint64_t tile);
  // Announces that this rank's tensors are somewhere else.
  static void AnnounceNone(ShmPort* port, uint64_t tile) { port->runs(port->rank(), tile) = {}; }

  // Reads all ranks' announcements; false if one has none. kCorrupt if one cannot be true.
  StatusOr<bool> Read(int64_t count, int64_t element_bytes, ShmPort* port, uint64_t tile);

  // At which element the ranks' memory is looked at.
  void Seek(int64_t element) {
    for (SegmentCursor& cursor : cursors_) cursor.Seek(element);
  }
  // How many elements lie in one piece from there on, on every rank; at most `limit`.
  int64_t Run(int64_t limit) const {
    for (const SegmentCursor& cursor : cursors_) limit = cursor.Run(limit);
    return limit;
  }
  const std::byte* input(int rank) const { return cursors_[static_cast<size_t>(rank)].input(); }
  std::byte* output(int rank) const { return cursors_[static_cast<size_t>(rank)].output(); }

 private:
  Status ReadRank(int rank, int64_t count, int64_t element_bytes, ShmPort* port, uint64_t tile);

  std::vector<std::vector<Segment>> segments_;  // by rank, as they are mapped here
  std::vector<SegmentCursor> cursors_;
};

}  // namespace horocache::data
