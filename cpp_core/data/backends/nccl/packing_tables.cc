#include "data/backends/nccl/packing_tables.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/memory.h"

namespace horocache::data {
namespace {

constexpr int64_t kTableAlignment = 16;  // bytes

}  // namespace

StatusOr<const PackingTableOnDevice*> PackingTables::Get(const std::vector<cuda::PackedTensor>& tensors,
                                                         size_t element_bytes,
                                                         const std::shared_ptr<cuda::Device>& device,
                                                         cuda::Stream* stream) {
  for (const auto& known : tables_) {
    if (known->element_bytes == element_bytes && known->tensors == tensors) return known.get();
  }
  auto fresh = std::make_unique<PackingTableOnDevice>();
  fresh->tensors = tensors;
  fresh->element_bytes = element_bytes;
  fresh->table = cuda::PackingTable(tensors, element_bytes);
  const std::vector<std::byte>& bytes = fresh->table.bytes;
  StatusOr<std::byte*> room = Room(static_cast<int64_t>(bytes.size()), device, stream);
  if (!room.ok()) return room.status();
  HC_RETURN_IF_ERROR(Write(bytes, *room, device, stream));
  fresh->memory = *room;
  tables_.push_back(std::move(fresh));
  return tables_.back().get();
}

StatusOr<std::byte*> PackingTables::Room(int64_t bytes, const std::shared_ptr<cuda::Device>& device,
                                         cuda::Stream* stream) {
  if (block_ == nullptr || bytes > block_->bytes()) {
    if (block_ != nullptr) HC_RETURN_IF_ERROR(block_->NoteUses(stream));
    tables_.clear();
    auto made = cuda::DeviceBuffer::Make(device, std::max(bytes, kBlockBytes), stream);
    if (!made.ok()) return made.status();
    block_ = std::move(*made);
    used_ = 0;
  } else if (used_ + bytes > block_->bytes() || tables_.size() == kMostTables) {
    tables_.clear();
    used_ = 0;
  }
  std::byte* const room = block_->data() + used_;
  used_ = RoundUp(used_ + bytes, kTableAlignment);
  return room;
}

Status PackingTables::Write(const std::vector<std::byte>& bytes, std::byte* to,
                            const std::shared_ptr<cuda::Device>& device, cuda::Stream* stream) {
  const auto size = static_cast<int64_t>(bytes.size());
  for (int64_t at = 0; at < size;) {
    if (sources_.empty() || sources_.back().used == cuda::PinnedMemory::kBytes) HC_RETURN_IF_ERROR(NextSource(device));
    Source& source = sources_.back();
    const int64_t run = std::min(size - at, cuda::PinnedMemory::kBytes - source.used);
    std::byte* const from = source.memory->data() + source.used;
    std::memcpy(from, bytes.data() + at, static_cast<size_t>(run));
    HC_RETURN_IF_ERROR(stream->CopyFromHost(to + at, from, run));
    HC_RETURN_IF_ERROR(stream->Record(&source.read));
    source.used += run;
    at += run;
  }
  return Status::Ok();
}

Status PackingTables::NextSource(const std::shared_ptr<cuda::Device>& device) {
  if (!sources_.empty()) {
    const StatusOr<bool> read = sources_.front().read.Happened();
    if (!read.ok()) return read.status();
    if (*read) {
      Source source = std::move(sources_.front());
      sources_.pop_front();
      source.used = 0;
      sources_.push_back(std::move(source));
      return Status::Ok();
    }
  }
  Source source;
  auto memory = cuda::PinnedMemory::Make(device);
  if (!memory.ok()) return memory.status();
  auto read = cuda::Event::Make(device);
  if (!read.ok()) return read.status();
  source.memory = std::move(*memory);
  source.read = std::move(*read);
  sources_.push_back(std::move(source));
  return Status::Ok();
}

void PackingTables::GiveUp() {
  if (block_ != nullptr) block_->GiveUp();
  for (size_t i = 0; i < sources_.size(); ++i) static_cast<void>(sources_.at(i).memory.release());
}

}  // namespace horocache::data
