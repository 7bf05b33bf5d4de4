// Part of Window: batches that are larger than their cells.
#include <algorithm>
#include <string>
#include <utility>

#include "moe/window.h"
#include "moe/window_layout.h"

namespace horocache::moe {

bool Window::Fits(int32_t rows) const {
  return rows * row_bytes_[0] <= geometry_.batch_bytes && rows * row_bytes_[1] <= geometry_.result_bytes;
}

size_t Window::SpillBytes(int32_t rows) const {
  return CellBytes(rows * row_bytes_[0]) + CellBytes(rows * row_bytes_[1]);
}

// The batch and the result in a piece.
std::array<std::span<std::byte>, 2> Window::SpillParts(std::byte* at, int32_t rows) const {
  const int64_t batch = rows * row_bytes_[0];
  return {std::span{at, static_cast<size_t>(batch)},
          std::span{at + CellBytes(batch), static_cast<size_t>(rows * row_bytes_[1])}};
}

// Memory for a batch that is larger than its cell; valid until the next call.
StatusOr<Window::Spill*> Window::SpillFor(int host, int32_t rows) {
  const size_t bytes = SpillBytes(rows);
  // Results of this round are still to be taken, also from a host that has left it.
  const auto is_free = [this](const Spill& spill) {
    const bool is_written = exchange_.released(spill.host) < spill.round && !exchange_.lost(spill.host);
    return spill.round < exchange_.round() && !is_written;
  };
  auto found = std::find_if(spills_.begin(), spills_.end(),
                            [&](const Spill& spill) { return spill.bytes >= bytes && is_free(spill); });
  if (found == spills_.end()) {
    // Pieces that are too small now are not kept: batches may grow for a long time.
    std::erase_if(spills_, is_free);
    // A quarter more, because the next batches are probably larger and smaller.
    std::shared_ptr<std::byte> memory = blocks_.allocate(bytes + bytes / 4);
    if (memory == nullptr) {
      return Status(StatusCode::kOutOfMemory, Name() + " has no shared memory for a batch of " + std::to_string(rows) +
                                                  " tokens (" + std::to_string(bytes) + " bytes) in " +
                                                  NameOfTag(tag_) +
                                                  "; route fewer tokens in one call, or raise HOROCACHE_REGION_BYTES");
    }
    spills_.push_back({.host = host, .round = 0, .memory = std::move(memory), .bytes = bytes + bytes / 4});
    found = std::prev(spills_.end());
  }
  found->host = host;
  found->round = exchange_.round();
  return &*found;
}

// This rank's batch for `host` in this round; null if it fits into its cell.
const Window::Spill* Window::FindSpill(int host) const {
  const auto found = std::find_if(spills_.begin(), spills_.end(), [&](const Spill& each) {
    return each.host == host && each.round == exchange_.round();
  });
  return found == spills_.end() ? nullptr : &*found;
}

// The piece at an offset that another rank wrote.
Status Window::Locate(int peer, int64_t offset, std::byte** at) const {
  const std::span<std::byte> region = blocks_.regions[static_cast<size_t>(peer)];
  const auto bytes = static_cast<int64_t>(SpillBytes(rows_[static_cast<size_t>(peer)]));
  if (offset < 0 || offset > static_cast<int64_t>(region.size()) - bytes) {
    return {StatusCode::kCorrupt, names_[static_cast<size_t>(peer)] + " names memory at " + std::to_string(offset) +
                                      ", which is not its own"};
  }
  *at = region.data() + offset;
  return Status::Ok();
}

}  // namespace horocache::moe
