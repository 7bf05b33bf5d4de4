// Tables of tensors for the packing kernels, on the device.
//
// A program reduces the same tensors in every step. So tables are kept, and a table that is there is not written again.
// All of them are in one block of the device's memory, and are read and written by one stream. When the block is full,
// or they are many, they are dropped together, and the next one is written at its beginning, behind the kernels that
// read what was there.
//
// Threads: the driving thread. Each call requires a Scope of the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/ring_queue.h"
#include "base/status.h"
#include "cuda/device.h"

namespace horocache::data {

struct PackingTableOnDevice {
  std::vector<cuda::PackedTensor> tensors;
  size_t element_bytes = 0;
  cuda::PackingTable table;
  const std::byte* memory = nullptr;
};

class PackingTables {
 public:
  // The table of `tensors`, for kernels that are queued on `stream`, always the same one. It is written by the stream
  // if it is not there. Valid up to the next call.
  StatusOr<const PackingTableOnDevice*> Get(const std::vector<cuda::PackedTensor>& tensors, size_t element_bytes,
                                            const std::shared_ptr<cuda::Device>& device, cuda::Stream* stream);
  // The stream may never come to its end: what it uses is never freed.
  void GiveUp();

 private:
  static constexpr int64_t kBlockBytes = 2 << 20;
  static constexpr size_t kMostTables = 1024;  // more would take too long to search

  // Pinned memory from which tables are copied to the device.
  struct Source {
    std::unique_ptr<cuda::PinnedMemory> memory;
    cuda::Event read;  // the device has read all of it
    int64_t used = 0;  // bytes
  };

  // Memory on the device for a table.
  StatusOr<std::byte*> Room(int64_t bytes, const std::shared_ptr<cuda::Device>& device, cuda::Stream* stream);
  Status Write(const std::vector<std::byte>& bytes, std::byte* to, const std::shared_ptr<cuda::Device>& device,
               cuda::Stream* stream);
  Status NextSource(const std::shared_ptr<cuda::Device>& device);

  std::vector<std::unique_ptr<PackingTableOnDevice>> tables_;
  std::shared_ptr<cuda::DeviceBuffer> block_;
  int64_t used_ = 0;           // bytes of the block
  RingQueue<Source> sources_;  // the last one has room
};

}  // namespace horocache::data
