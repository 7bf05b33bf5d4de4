// The kernels that the fake knows, in C++: those of the calibration, and those that pack tensors.
#include <cstring>

#include "driver/driver.h"
#include "driver/numbers.h"
#include "driver/options.h"

namespace fake_gpu {
namespace {

// Runs for some time.
class SpinWork : public Work {
 public:
  explicit SpinWork(uint64_t ns) : ns_(ns) {}
  Outcome Run() override {
    if (begin_ns_ == 0) begin_ns_ = Now();
    return Now() - begin_ns_ >= static_cast<int64_t>(ns_) ? Outcome::kDone : Outcome::kAgain;
  }

 private:
  const uint64_t ns_;
  int64_t begin_ns_ = 0;
};

// Runs at once; its error spoils the context.
class KernelWork : public Work {
 public:
  KernelWork(Device* device, std::function<Code()> run) : device_(device), run_(std::move(run)) {}
  Outcome Run() override {
    if (const Code error = run_()) Spoil(device_, error);
    return Outcome::kDone;
  }

 private:
  Device* const device_;
  const std::function<Code()> run_;
};

// Memory that a kernel uses; null: an illegal address. The host's memory must be registered.
std::byte* Use(Address address, size_t bytes) {
  const Lock lock(state().mutex);
  if (OwnerOf(lock, address) == nullptr && !IsPinned(lock, address, bytes)) return nullptr;
  return Reach(lock, address, bytes);
}

Code StoreWord(Address address, uint32_t value) {
  if (address % 4 != 0) return k_MISALIGNED_ADDRESS;
  std::byte* const word = Use(address, 4);
  if (word == nullptr) return k_ILLEGAL_ADDRESS;
  std::memcpy(word, &value, 4);
  return k_SUCCESS;
}

// ---- packing

struct Type {
  std::string_view name;
  size_t size;
  bool raw;  // copied as it is
};
constexpr Type kTypes[] = {{"b8", 1, true},   {"b16", 2, true},   {"b32", 4, true},  {"b64", 8, true},
                           {"f16", 2, false}, {"bf16", 2, false}, {"f32", 4, false}, {"f64", 8, false}};

const Type* FindType(std::string_view name) {
  for (const Type& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

// The types of move_SOURCE_TARGET or move_SOURCE_TARGET_by_N.
bool ParseMove(std::string_view name, const Type** source, const Type** target) {
  if (!name.starts_with("move_")) return false;
  name.remove_prefix(5);
  const size_t middle = name.find('_');
  if (middle == std::string_view::npos) return false;
  *source = FindType(name.substr(0, middle));
  std::string_view rest = name.substr(middle + 1);
  *target = FindType(rest.substr(0, rest.find('_')));
  return *source != nullptr && *target != nullptr;
}

double Load(const Type& type, const std::byte* from) {
  uint16_t half = 0;
  float single = 0;
  double wide = 0;
  if (type.name == "f64") {
    std::memcpy(&wide, from, 8);
    return wide;
  }
  if (type.name == "f32") {
    std::memcpy(&single, from, 4);
    return static_cast<double>(single);
  }
  std::memcpy(&half, from, 2);
  return static_cast<double>(type.name == "f16" ? Half::Value(half) : Bfloat::Value(half));
}

void Store(const Type& type, double value, std::byte* to) {
  const auto single = static_cast<float>(value);
  if (type.name == "f64") {
    std::memcpy(to, &value, 8);
  } else if (type.name == "f32") {
    std::memcpy(to, &single, 4);
  } else {
    const auto half = static_cast<uint16_t>(type.name == "f16" ? Half::Bits(single) : Bfloat::Bits(single));
    std::memcpy(to, &half, 2);
  }
}

// Arguments: table, parts, number of parts, length of a part, flat buffer, direction, factor.
Code Move(const Launch& launch, const Type& source, const Type& target) {
  struct Entry {
    Address pointer;
    uint64_t place;
    uint64_t size;
  };
  const auto table = launch.Argument<Address>(0);
  const auto parts = launch.Argument<Address>(1);
  const auto number_of_parts = launch.Argument<uint32_t>(2);
  const auto part_length = launch.Argument<uint32_t>(3);
  const auto flat = launch.Argument<Address>(4);
  const bool unpack = launch.Argument<uint32_t>(5) != 0;
  double factor = 1;
  if (!source.raw) {
    factor = source.name == "f64" ? launch.Argument<double>(6) : static_cast<double>(launch.Argument<float>(6));
  }
  for (uint32_t number = 0; number < number_of_parts; ++number) {
    const std::byte* const listed = Use(parts + uint64_t{8} * number, 8);
    if (listed == nullptr) return k_ILLEGAL_ADDRESS;
    uint32_t part[2];
    std::memcpy(part, listed, 8);
    const std::byte* const described = Use(table + uint64_t{24} * part[0], 24);
    if (described == nullptr) return k_ILLEGAL_ADDRESS;
    Entry entry;
    std::memcpy(&entry, described, 24);
    const uint64_t first = uint64_t{part[1]} * part_length;
    if (first >= entry.size) return k_ILLEGAL_ADDRESS;
    const uint64_t count = std::min<uint64_t>(part_length, entry.size - first);
    const Address from = (unpack ? flat + entry.place * source.size : entry.pointer) + first * source.size;
    const Address to = (unpack ? entry.pointer : flat + entry.place * target.size) + first * target.size;
    if (from % source.size != 0 || to % target.size != 0) return k_MISALIGNED_ADDRESS;
    const std::byte* const loaded = Use(from, count * source.size);
    std::byte* const stored = Use(to, count * target.size);
    if (loaded == nullptr || stored == nullptr) return k_ILLEGAL_ADDRESS;
    if (source.raw) {
      std::memcpy(stored, loaded, count * source.size);
      continue;
    }
    for (uint64_t i = 0; i < count; ++i) {
      const double value = Load(source, loaded + i * source.size);
      const double scaled = source.name == "f64"
                                ? value * factor
                                : static_cast<double>(static_cast<float>(value) * static_cast<float>(factor));
      Store(target, scaled, stored + i * target.size);
    }
  }
  return k_SUCCESS;
}

}  // namespace

bool HasKernel(const std::string& name) {
  const Type* source = nullptr;
  const Type* target = nullptr;
  return name == "spin_ns" || name == "nothing" || name == "store_u32" || name == "trap_now" ||
         ParseMove(name, &source, &target);
}

std::unique_ptr<Work> MakeKernel(Device* device, const Launch& launch) {
  if (launch.name == "spin_ns") return std::make_unique<SpinWork>(launch.Argument<uint64_t>(0));
  std::function<Code()> run = [] { return k_SUCCESS; };
  const Type* source = nullptr;
  const Type* target = nullptr;
  if (launch.name == "store_u32") {
    run = [launch] { return StoreWord(launch.Argument<Address>(0), launch.Argument<uint32_t>(1)); };
  } else if (launch.name == "trap_now") {
    run = [] { return k_LAUNCH_FAILED; };
  } else if (ParseMove(launch.name, &source, &target)) {
    run = [launch, source, target] { return Move(launch, *source, *target); };
  }
  return std::make_unique<KernelWork>(device, std::move(run));
}

}  // namespace fake_gpu
