#include "runtime/windows/windows.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/memory.h"

namespace horocache::runtime {
namespace {

// Keeps the blocks of all ranks mapped, with the regions.
struct Owner {
  std::shared_ptr<std::byte> block;
  std::shared_ptr<const net::SharedRegions> regions;
};

std::string RankText(int rank) { return "rank " + std::to_string(rank); }

std::string NoMemory(const WindowMembers& members, int64_t bytes, int64_t used) {
  return RankText(members.ranks[static_cast<size_t>(members.rank)]) + " has no shared memory for a window of " +
         std::to_string(bytes) + " bytes beside the " + std::to_string(used) +
         " bytes in use; lower max_tokens or the depth of the window, close layers that are not used any more, or "
         "raise "
         "HOROCACHE_REGION_BYTES";
}

// Pages of zeros; null if memory is short.
std::shared_ptr<std::byte> PrivateMemory(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(memory), [bytes](std::byte* at) { munmap(at, bytes); }};
}

// True if another rank of the set is on this host.
bool HasCompany(const WindowMembers& members) {
  return std::ranges::count_if(members.local_ranks, [](int local_rank) { return local_rank >= 0; }) > 1;
}

// The carrier of a window; null without a transport.
std::shared_ptr<moe::Carrier> CarrierFor(const WindowBlock& block, std::unique_ptr<moe::Transport> transport) {
  if (transport == nullptr) return nullptr;
  return std::make_shared<moe::Carrier>(std::move(transport), static_cast<int>(block.members.ranks.size()),
                                        [bell = moe::Window::BellOf(block.memory.get())]() mutable { bell.Ring(); });
}

}  // namespace

int WindowMembers::far_rank() const {
  const auto far = std::ranges::find(local_ranks, -1);
  return far == local_ranks.end() ? -1 : ranks[static_cast<size_t>(far - local_ranks.begin())];
}

moe::RemoteTarget WindowBlock::Target() const {
  return {{memory.get(), static_cast<size_t>(moe::BlockBytes(geometry, members.rank))}, memory};
}

Windows::Windows(std::shared_ptr<net::SharedHeap> heap, std::shared_ptr<const net::SharedRegions> regions,
                 int64_t spin_ns, std::shared_ptr<moe::ExchangeCounters> counters)
    : heap_(std::move(heap)), regions_(std::move(regions)), spin_ns_(spin_ns), counters_(std::move(counters)) {}

Windows::~Windows() { Close(); }

StatusOr<WindowBlock> Windows::Allocate(moe::Geometry geometry, WindowMembers members) {
  const MutexLock lock(mutex_);
  if (closed_) return Status(StatusCode::kShutDown, "horocache has been shut down on this rank; call init() again.");
  Sweep();
  const int64_t bytes = moe::BlockBytes(geometry, members.rank);
  if (!HasCompany(members)) {
    std::shared_ptr<std::byte> memory = PrivateMemory(static_cast<size_t>(bytes));
    if (memory == nullptr) return Status(StatusCode::kOutOfMemory, NoMemory(members, bytes, 0));
    return WindowBlock{std::move(memory), 0, std::move(geometry), std::move(members)};
  }
  return AllocateShared(bytes, std::move(geometry), std::move(members));
}

StatusOr<WindowBlock> Windows::AllocateShared(int64_t bytes, moe::Geometry geometry, WindowMembers members) {
  if (heap_ == nullptr) {
    return UnsupportedError(
        "one-sided exchanges need memory that the ranks share, and this job has none (HOROCACHE_REGION_BYTES=0, or the "
        "address space is short); choose another exchange (HOROCACHE_MOE_EXCHANGE)");
  }
  std::shared_ptr<net::SharedBlock> memory = heap_->Allocate(static_cast<size_t>(bytes));
  if (memory == nullptr) {
    return Status(StatusCode::kOutOfMemory, NoMemory(members, bytes, heap_->bytes()));
  }
  std::byte* const at = memory->memory().data();
  const auto offset = at - regions_->of(members.local_ranks[static_cast<size_t>(members.rank)]).data();
  return WindowBlock{std::shared_ptr<std::byte>(std::move(memory), at), offset, std::move(geometry),
                     std::move(members)};
}

StatusOr<std::shared_ptr<moe::Window>> Windows::Connect(WindowBlock block, const std::vector<int64_t>& offsets,
                                                        std::unique_ptr<moe::Transport> transport) {
  const WindowMembers& members = block.members;
  if (offsets.size() != members.ranks.size()) {
    return InvalidArgumentError("a window of " + std::to_string(members.ranks.size()) + " ranks got " +
                                std::to_string(offsets.size()) + " offsets");
  }
  moe::Window::Blocks blocks;
  blocks.owner = std::make_shared<const Owner>(Owner{block.memory, regions_});
  blocks.ranks = members.ranks;
  blocks.carrier = CarrierFor(block, std::move(transport));
  if (HasCompany(members)) {
    for (const int local_rank : members.local_ranks)
      blocks.regions.push_back(local_rank < 0 ? std::span<std::byte>() : regions_->of(local_rank));
    blocks.allocate = [heap = heap_](size_t bytes) -> std::shared_ptr<std::byte> {
      auto piece = heap->Allocate(bytes);
      return piece == nullptr ? nullptr : std::shared_ptr<std::byte>(piece, piece->memory().data());
    };
  } else {
    blocks.allocate = &PrivateMemory;
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < offsets.size(); ++i) {
    names.push_back(RankText(members.ranks[i]));
    if (static_cast<int>(i) == members.rank) {
      blocks.base.push_back(block.memory.get());
      continue;
    }
    if (members.local_ranks[i] < 0) {
      blocks.base.push_back(nullptr);
      continue;
    }
    const std::span<std::byte> region = regions_->of(members.local_ranks[i]);
    const int64_t bytes = moe::BlockBytes(block.geometry, static_cast<int>(i));
    const auto room = static_cast<int64_t>(region.size()) - bytes;
    if (offsets[i] < 0 || offsets[i] > room || offsets[i] % kPage != 0) {
      return InvalidArgumentError(RankText(members.ranks[i]) + " has no block at " + std::to_string(offsets[i]));
    }
    blocks.base.push_back(region.data() + offsets[i]);
  }
  auto window = std::make_shared<moe::Window>(members.rank, block.geometry, std::move(blocks), std::move(names),
                                              spin_ns_, counters_);
  const MutexLock lock(mutex_);
  if (closed_) return Status(StatusCode::kShutDown, "horocache has been shut down on this rank; call init() again.");
  for (size_t i = 0; i < members.ranks.size(); ++i) {
    if (std::ranges::find(lost_, members.ranks[i]) != lost_.end()) window->Lose(static_cast<int>(i));
  }
  windows_.push_back({window, members.ranks});
  return window;
}

std::string Windows::CallsElsewhere(const moe::Window& waiting) {
  const MutexLock lock(mutex_);
  std::string text;
  for (const Open& open : windows_) {
    if (open.window.get() == &waiting || open.window->closed()) continue;
    for (size_t i = 0; i < open.ranks.size(); ++i) {
      const std::string call = open.window->CallAhead(static_cast<int>(i));
      if (!call.empty()) text += "; " + RankText(open.ranks[i]) + " is in " + call;
    }
  }
  return text;
}

void Windows::Lose(int rank) {
  const MutexLock lock(mutex_);
  lost_.push_back(rank);
  for (const Open& open : windows_) {
    const auto found = std::ranges::find(open.ranks, rank);
    if (found != open.ranks.end()) open.window->Lose(static_cast<int>(found - open.ranks.begin()));
  }
}

void Windows::Close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  // The blocks stay, because the other ranks may still write to them.
  for (const Open& open : windows_) open.window->Close();
}

// Frees the blocks to which no other rank will write any more.
void Windows::Sweep() {
  std::erase_if(windows_, [](const Open& open) { return open.window->closed() && open.window->IsForgotten(); });
}

}  // namespace horocache::runtime
