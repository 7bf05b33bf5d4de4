// The parts of the DLPack 1.3 C interface that the bindings need. Layouts are fixed by that standard
// (dmlc.github.io/dlpack).
#pragma once

#include <cstdint>

namespace horocache::dlpack {

inline constexpr int kCpu = 1;
inline constexpr int kCuda = 2;
inline constexpr int kCudaHost = 3;

struct Device {
  int32_t type;
  int32_t id;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // null: compact, row major
  uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* manager;
  void (*deleter)(ManagedTensor* self);
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

// `type(t).__dlpack_c_exchange_api__`, a capsule named "dlpack_exchange_api".
struct ExchangeApi {
  struct Header {
    Version version;
    Header* previous;
  } header;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*tensor_from_object)(void* object, Tensor* out);  // borrows; 0 on success, else a Python error is set
  // The stream on which the framework queues this thread's work; null is the legacy default stream. 0 on success, else
  // a Python error is set.
  int (*current_work_stream)(int32_t device_type, int32_t device, void** stream);
};

}  // namespace horocache::dlpack
