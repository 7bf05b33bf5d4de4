// Kernels that copy many tensors into one flat array and back, in one launch.
//
// They are PTX, which the driver compiles for its device; benchmarks/gpu/packing_kernels.py has written it, describes
// it, and has measured it.
//
// Threads: any, at the same time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "cuda/driver.h"

namespace horocache::cuda {

// One tensor of a table: a row of what the kernels read.
struct PackedTensor {
  const std::byte* tensor = nullptr;
  // Its place in the flat array, in elements. Counted modulo 2^64, so that any memory in reach of the device has one.
  uint64_t place = 0;
  uint64_t count = 0;  // elements; not 0
  bool operator==(const PackedTensor&) const = default;
};
static_assert(sizeof(PackedTensor) == 24);

// The bytes of a table: the tensors, and the list of the parts in which the kernels copy them.
struct PackingTable {
  PackingTable() = default;
  PackingTable(const std::vector<PackedTensor>& tensors, size_t element_bytes);

  std::vector<std::byte> bytes;
  size_t parts_at = 0;  // where the list of parts begins
  uint32_t parts = 0;
  uint32_t part_length = 0;  // elements
};

class PackingKernels {
 public:
  enum class Direction : uint32_t { kPack, kUnpack };

  // Compiles the kernels. May wait for the device's work. Requires a Scope.
  static StatusOr<std::unique_ptr<const PackingKernels>> Load(const Driver& driver, CudaDevice device);

  // Queues a copy of all tensors of `table`, whose bytes are at `on_device`, into the flat array or back. Elements of a
  // floating-point type are multiplied by `factor`; with the factor 1, elements of any type are copied as units of 1,
  // 2, 4 or 8 bytes, in which the table counts. Requires a Scope.
  Status Launch(const Driver& driver, DType dtype, size_t unit_bytes, Direction direction, const PackingTable& table,
                const std::byte* on_device, std::byte* flat, double factor, StreamHandle stream) const;

  ModuleHandle module() const { return module_; }

 private:
  static constexpr size_t kNumKernels = 8;

  PackingKernels() = default;

  ModuleHandle module_ = nullptr;
  std::array<FunctionHandle, kNumKernels> functions_ = {};
  unsigned most_blocks_ = 1;
};

}  // namespace horocache::cuda
