#include "data/backends/shm/direct_buffers.h"

#include <string>

namespace horocache::data {
namespace {

// Offset in the region of the `bytes` bytes at `at`; -1 if they are not in the region.
int64_t OffsetIn(std::span<const std::byte> region, const std::byte* at, int64_t bytes) {
  const int64_t offset = at - region.data();
  if (at < region.data() || bytes > static_cast<int64_t>(region.size())) return -1;
  return offset <= static_cast<int64_t>(region.size()) - bytes ? offset : -1;
}

// True if `run` continues `before` in both input and output.
bool Joins(const RegionRun& before, const RegionRun& run) {
  return before.input + before.bytes == run.input && before.output + before.bytes == run.output;
}

// True if the output partly overlaps the input. The output may replace the input exactly, but not partly.
bool Overlaps(const RegionRun& run) {
  return run.input != run.output && run.input < run.output + run.bytes && run.output < run.input + run.bytes;
}

bool IsWithin(std::span<const std::byte> region, int64_t offset, int64_t bytes) {
  return offset >= 0 && bytes <= static_cast<int64_t>(region.size()) &&
         offset <= static_cast<int64_t>(region.size()) - bytes;
}

}  // namespace

bool DirectBuffers::Announce(const std::vector<Segment>& segments, int64_t element_bytes, ShmPort* port,
                             uint64_t tile) {
  const std::span<std::byte> region = port->region(port->rank());
  auto* const others = reinterpret_cast<RegionRun*>(port->payload(port->rank(), tile));
  const int64_t most = port->tile_bytes() / static_cast<int64_t>(sizeof(RegionRun)) + 1;
  ShmPort::Runs& runs = port->runs(port->rank(), tile);
  RegionRun run;
  int64_t count = 0;
  runs = {};
  const auto put = [&] {
    if (count > 0) (count == 1 ? runs.first : others[count - 2]) = run;
  };
  for (const Segment& segment : segments) {
    if (segment.count == 0) continue;
    RegionRun next;
    next.bytes = segment.count * element_bytes;
    next.input = OffsetIn(region, segment.input, next.bytes);
    next.output = OffsetIn(region, segment.output, next.bytes);
    if (next.input < 0 || next.output < 0 || Overlaps(next)) return false;
    if (count > 0 && Joins(run, next)) {
      run.bytes += next.bytes;
      continue;
    }
    put();
    if (++count > most) return false;
    run = next;
  }
  put();
  runs.count = count;
  return count > 0;
}

StatusOr<bool> DirectBuffers::Read(int64_t count, int64_t element_bytes, ShmPort* port, uint64_t tile) {
  const auto ranks = static_cast<size_t>(port->size());
  segments_.resize(ranks);
  cursors_.clear();
  for (int rank = 0; rank < port->size(); ++rank) {
    if (port->runs(rank, tile).count == 0) return false;
  }
  for (int rank = 0; rank < port->size(); ++rank) {
    HC_RETURN_IF_ERROR(ReadRank(rank, count, element_bytes, port, tile));
    cursors_.emplace_back(&segments_[static_cast<size_t>(rank)], static_cast<size_t>(element_bytes));
  }
  return true;
}

Status DirectBuffers::ReadRank(int rank, int64_t count, int64_t element_bytes, ShmPort* port, uint64_t tile) {
  const std::span<std::byte> region = port->region(rank);
  const auto* const others = reinterpret_cast<const RegionRun*>(port->payload(rank, tile));
  const ShmPort::Runs runs = port->runs(rank, tile);
  std::vector<Segment>& segments = segments_[static_cast<size_t>(rank)];
  segments.clear();
  bool good = runs.count >= 1 && runs.count <= port->tile_bytes() / static_cast<int64_t>(sizeof(RegionRun)) + 1;
  for (int64_t i = 0; good && i < runs.count; ++i) {
    const RegionRun run = i == 0 ? runs.first : others[i - 1];
    const int64_t elements = run.bytes / element_bytes;
    good = elements >= 1 && elements <= count && run.bytes == elements * element_bytes &&
           IsWithin(region, run.input, run.bytes) && IsWithin(region, run.output, run.bytes);
    if (good) segments.push_back({region.data() + run.input, region.data() + run.output, elements});
    count -= elements;
  }
  if (good && count == 0) return Status::Ok();
  return {StatusCode::kCorrupt, "rank " + std::to_string(rank) +
                                    " announced memory outside of its region, or for another number of elements"};
}

}  // namespace horocache::data
