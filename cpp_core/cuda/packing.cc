#include "cuda/packing.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cuda/packing_ptx.h"

namespace horocache::cuda {
namespace {

// The launch that is at most 5 % slower than the fastest for every group of tensors that was measured on an H100: see
// "Packing" in benchmarks/gpu/README.md.
constexpr unsigned kThreads = 256;
constexpr unsigned kBlocksPerMultiprocessor = 2;
constexpr size_t kPartBytes = 16 << 10;
constexpr size_t kMostParts = size_t{1} << 18;  // longer tables get longer parts
// The names' ends, by index: elements that are copied as they are, by size, and numbers.
constexpr std::array<const char*, 8> kNames = {"move_b8_b8",   "move_b16_b16",   "move_b32_b32", "move_b64_b64",
                                               "move_f16_f16", "move_bf16_bf16", "move_f32_f32", "move_f64_f64"};

size_t KernelOf(DType dtype, size_t unit_bytes, bool scales) {
  if (!scales) return unit_bytes == 1 ? 0 : unit_bytes == 2 ? 1 : unit_bytes == 4 ? 2 : 3;
  return dtype == DType::kFloat16 ? 4 : dtype == DType::kBfloat16 ? 5 : dtype == DType::kFloat32 ? 6 : 7;
}

}  // namespace

PackingTable::PackingTable(const std::vector<PackedTensor>& tensors, size_t element_bytes) {
  size_t length = kPartBytes / element_bytes;
  const auto count_parts = [&] {
    size_t count = 0;
    for (const PackedTensor& tensor : tensors) count += (tensor.count + length - 1) / length;
    return count;
  };
  // A tensor has one part at least.
  while (count_parts() > std::max(kMostParts, tensors.size())) length *= 2;
  parts = static_cast<uint32_t>(count_parts());
  part_length = static_cast<uint32_t>(length);
  parts_at = tensors.size() * sizeof(PackedTensor);
  bytes.resize(parts_at + parts * sizeof(uint64_t));
  std::memcpy(bytes.data(), tensors.data(), parts_at);
  std::byte* next = bytes.data() + parts_at;
  for (uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
    for (uint32_t part = 0; part * length < tensors[tensor].count; ++part, next += sizeof(uint64_t)) {
      const std::array<uint32_t, 2> numbers = {tensor, part};
      std::memcpy(next, numbers.data(), sizeof numbers);
    }
  }
}

StatusOr<std::unique_ptr<const PackingKernels>> PackingKernels::Load(const Driver& driver, CudaDevice device) {
  std::unique_ptr<PackingKernels> kernels(new PackingKernels);
  int multiprocessors = 0;
  HC_RETURN_IF_ERROR(
      driver.Check(driver.DeviceGetAttribute(&multiprocessors, kMultiprocessors, device), "cuDeviceGetAttribute"));
  kernels->most_blocks_ = kBlocksPerMultiprocessor * static_cast<unsigned>(std::max(1, multiprocessors));
  HC_RETURN_IF_ERROR(driver.Check(driver.ModuleLoadData(&kernels->module_, kPackingPtx), "cuModuleLoadData"));
  for (size_t i = 0; i < kNumKernels; ++i) {
    const Code code = driver.ModuleGetFunction(&kernels->functions_[i], kernels->module_, kNames[i]);
    if (code == kSuccess) continue;
    driver.ModuleUnload(kernels->module_);
    return driver.Check(code, "cuModuleGetFunction");
  }
  return std::unique_ptr<const PackingKernels>(std::move(kernels));
}

Status PackingKernels::Launch(const Driver& driver, DType dtype, size_t unit_bytes, Direction direction,
                              const PackingTable& table, const std::byte* on_device, std::byte* flat, double factor,
                              StreamHandle stream) const {
  const bool scales = factor != 1.0;
  auto tensors = reinterpret_cast<Address>(on_device);
  Address parts = tensors + table.parts_at;
  auto target = reinterpret_cast<Address>(flat);
  uint32_t number_of_parts = table.parts, part_length = table.part_length;
  auto way = static_cast<uint32_t>(direction);
  auto single = static_cast<float>(factor);
  void* const last = dtype == DType::kFloat64 ? static_cast<void*>(&factor) : &single;
  std::array<void*, 7> arguments = {&tensors, &parts, &number_of_parts, &part_length, &target, &way, last};
  const unsigned blocks = std::min(number_of_parts, most_blocks_);
  const Code code = driver.LaunchKernel(functions_[KernelOf(dtype, unit_bytes, scales)], blocks, 1, 1, kThreads, 1, 1,
                                        0, stream, arguments.data(), nullptr);
  return driver.Check(code, "cuLaunchKernel");
}

}  // namespace horocache::cuda
