// Types and values of the CUDA driver API (cuda.h of CUDA 13.0) that the fake driver has, without their prefixes.
#pragma once

#include <cstddef>
#include <cstdint>

#define FAKE_GPU_API extern "C" __attribute__((visibility("default")))
#define FAKE_GPU_INTERNAL __attribute__((visibility("default")))  // for the fake NCCL

namespace fake_gpu {

using Code = int;          // CUresult
using Address = uint64_t;  // CUdeviceptr

// Name, value, and the text of cuGetErrorString.
#define FAKE_GPU_CODES(X)                                                                                         \
  X(SUCCESS, 0, "no error")                                                                                       \
  X(INVALID_VALUE, 1, "invalid argument")                                                                         \
  X(OUT_OF_MEMORY, 2, "out of memory")                                                                            \
  X(NOT_INITIALIZED, 3, "initialization error")                                                                   \
  X(DEINITIALIZED, 4, "driver shutting down")                                                                     \
  X(STUB_LIBRARY, 34, "CUDA driver is a stub library")                                                            \
  X(NO_DEVICE, 100, "no CUDA-capable device is detected")                                                         \
  X(INVALID_DEVICE, 101, "invalid device ordinal")                                                                \
  X(INVALID_IMAGE, 200, "device kernel image is invalid")                                                         \
  X(INVALID_CONTEXT, 201, "invalid device context")                                                               \
  X(INVALID_PTX, 218, "a PTX JIT compilation failed")                                                             \
  X(UNSUPPORTED_PTX_VERSION, 222, "the provided PTX was compiled with an unsupported toolchain.")                 \
  X(INVALID_HANDLE, 400, "invalid resource handle")                                                               \
  X(ILLEGAL_STATE, 401, "the operation cannot be performed in the present state")                                 \
  X(NOT_FOUND, 500, "named symbol not found")                                                                     \
  X(NOT_READY, 600, "device not ready")                                                                           \
  X(ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")                                             \
  X(LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch")                                      \
  X(CONTEXT_IS_DESTROYED, 709, "context is destroyed")                                                            \
  X(HOST_MEMORY_ALREADY_REGISTERED, 712, "part or all of the requested memory range is already mapped")           \
  X(HOST_MEMORY_NOT_REGISTERED, 713, "pointer does not correspond to a registered memory region")                 \
  X(MISALIGNED_ADDRESS, 716, "misaligned address")                                                                \
  X(LAUNCH_FAILED, 719, "unspecified launch failure")                                                             \
  X(NOT_PERMITTED, 800, "operation not permitted")                                                                \
  X(NOT_SUPPORTED, 801, "operation not supported")                                                                \
  X(STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing")                          \
  X(STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture")                   \
  X(STREAM_CAPTURE_ISOLATION, 905, "dependency created on uncaptured work in another stream")                     \
  X(STREAM_CAPTURE_IMPLICIT, 906, "operation would make the legacy stream depend on a capturing blocking stream") \
  X(CAPTURED_EVENT, 907, "operation not permitted on an event last recorded in a capturing stream")               \
  X(STREAM_CAPTURE_WRONG_THREAD, 908, "attempt to terminate a thread-local capture sequence from another thread") \
  X(UNKNOWN, 999, "unknown error")

enum : Code {
#define FAKE_GPU_VALUE(name, value, text) k_##name = value,
  FAKE_GPU_CODES(FAKE_GPU_VALUE)
#undef FAKE_GPU_VALUE
};

// CUpointer_attribute
enum PointerAttribute : int {
  kContext = 1,
  kMemoryType = 2,
  kDevicePointer = 3,
  kHostPointer = 4,
  kDeviceOrdinal = 9,
  kLegacyIpcCapable = 10,
  kRangeStart = 11,
  kRangeSize = 12,
  kMapped = 13,
  kAllowedHandleTypes = 14,
};
enum : uint32_t { kMemoryHost = 1, kMemoryDevice = 2 };

// Flags of cuStreamCreate, cuEventCreate, cuMemHostRegister, cuMemHostAlloc.
enum : unsigned { kNonBlocking = 1 };
enum : unsigned { kBlockingSync = 1, kDisableTiming = 2, kInterprocess = 4 };
enum : unsigned { kPortable = 1, kDeviceMap = 2, kIoMemory = 4, kReadOnly = 8 };

// CUstreamCaptureMode
enum CaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

}  // namespace fake_gpu
