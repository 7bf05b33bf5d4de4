#include "net/mpi/abi_constants.h"

#include <string>

namespace horocache::net {
namespace {

// In the order of DType. A dtype for which MPI has no arithmetic is an unsigned integer of its size.
constexpr uintptr_t kStandardTypes[kNumDTypes] = {0x241, 0x240, 0x248, 0x250, 0x258, 0x249, 0x249, 0x210,
                                                  0x214, 0x212, 0x216, 0x241, 0x249, 0x251, 0x259};
constexpr uintptr_t kMpichTypes[kNumDTypes] = {0x4c00013b, 0x4c000137, 0x4c000238, 0x4c000439, 0x4c00083a,
                                               0x4c00023c, 0x4c00023c, 0x4c00040a, 0x4c00080b, 0x4c000840,
                                               0x4c001041, 0x4c00013b, 0x4c00023c, 0x4c00043d, 0x4c00083e};
constexpr const char* kOpenMpiTypes[kNumDTypes] = {
    "ompi_mpi_uint8_t",  "ompi_mpi_int8_t",          "ompi_mpi_int16_t",          "ompi_mpi_int32_t",
    "ompi_mpi_int64_t",  "ompi_mpi_uint16_t",        "ompi_mpi_uint16_t",         "ompi_mpi_float",
    "ompi_mpi_double",   "ompi_mpi_c_float_complex", "ompi_mpi_c_double_complex", "ompi_mpi_uint8_t",
    "ompi_mpi_uint16_t", "ompi_mpi_uint32_t",        "ompi_mpi_uint64_t"};

// In the order of MpiReduction: sum, product, min, max, and the bitwise and, or, xor.
constexpr uintptr_t kStandardOps[kNumMpiReductions] = {0x21, 0x24, 0x22, 0x23, 0x28, 0x29, 0x2a};
constexpr uintptr_t kMpichOps[kNumMpiReductions] = {0x58000003, 0x58000004, 0x58000002, 0x58000001,
                                                    0x58000006, 0x58000008, 0x5800000a};
constexpr const char* kOpenMpiOps[kNumMpiReductions] = {"ompi_mpi_op_sum", "ompi_mpi_op_prod", "ompi_mpi_op_min",
                                                        "ompi_mpi_op_max", "ompi_mpi_op_band", "ompi_mpi_op_bor",
                                                        "ompi_mpi_op_bxor"};

void* Pointer(intptr_t value) { return reinterpret_cast<void*>(value); }

MpiConstants Standard() {
  MpiConstants c{.world = 0x101,
                 .null_request = 0x180,
                 .errors_return = 0x143,
                 .byte = 0x247,
                 .replace = 0x3c,
                 .null_info = 0x130,
                 .threads = {0, 1024, 2048, 4096},
                 .any_source = -1,
                 .in_place = Pointer(1),
                 .status_ignore = nullptr,
                 .status_source_offset = 0};
  std::copy(std::begin(kStandardTypes), std::end(kStandardTypes), c.types);
  std::copy(std::begin(kStandardOps), std::end(kStandardOps), c.ops);
  return c;
}

MpiConstants Mpich() {
  MpiConstants c{.world = 0x44000000,
                 .null_request = 0x2c000000,
                 .errors_return = 0x54000001,
                 .byte = 0x4c00010d,
                 .replace = 0x5800000d,
                 .null_info = 0x1c000000,
                 .threads = {0, 1, 2, 3},
                 .any_source = -2,
                 .in_place = Pointer(-1),
                 .status_ignore = Pointer(1),
                 .status_source_offset = 8};
  std::copy(std::begin(kMpichTypes), std::end(kMpichTypes), c.types);
  std::copy(std::begin(kMpichOps), std::end(kMpichOps), c.ops);
  return c;
}

// Open MPI's handles are the addresses of its objects.
class Objects {
 public:
  explicit Objects(const DynamicLibrary& library) : library_(library) {}
  uintptr_t At(const char* name) {
    void* object = library_.Find(name);
    if (object == nullptr && status_.ok()) {
      status_ = Status(StatusCode::kUnsupported, "'" + library_.path() + "' looks like Open MPI but has no " + name);
    }
    return reinterpret_cast<uintptr_t>(object);
  }
  const Status& status() const { return status_; }

 private:
  const DynamicLibrary& library_;
  Status status_;
};

StatusOr<MpiConstants> OpenMpi(const DynamicLibrary& library) {
  Objects objects(library);
  MpiConstants c{.world = objects.At("ompi_mpi_comm_world"),
                 .null_request = objects.At("ompi_request_null"),
                 .errors_return = objects.At("ompi_mpi_errors_return"),
                 .byte = objects.At("ompi_mpi_byte"),
                 .replace = objects.At("ompi_mpi_op_replace"),
                 .null_info = objects.At("ompi_mpi_info_null"),
                 .threads = {0, 1, 2, 3},
                 .any_source = -1,
                 .in_place = Pointer(1),
                 .status_ignore = nullptr,
                 .status_source_offset = 0};
  for (int i = 0; i < kNumDTypes; ++i) c.types[i] = objects.At(kOpenMpiTypes[i]);
  for (int i = 0; i < kNumMpiReductions; ++i) c.ops[i] = objects.At(kOpenMpiOps[i]);
  if (!objects.status().ok()) return objects.status();
  return c;
}

}  // namespace

StatusOr<MpiConstants> ConstantsOf(MpiAbi abi, const DynamicLibrary& library) {
  switch (abi) {
    case MpiAbi::kStandard:
      return Standard();
    case MpiAbi::kMpich:
      return Mpich();
    case MpiAbi::kOpenMpi:
      break;
  }
  return OpenMpi(library);
}

}  // namespace horocache::net
