// The CUDA driver (libcuda.so.1), loaded at run time: nothing links it, and nothing of a toolkit is needed to build.
//
// Values and signatures follow the driver API of CUDA 11 and later. Every function of the library is a method of
// Driver, with the name that it has without "cu" and without the suffix of its version.
//
// Note [Exit of the process]
// Once exit() has begun, the driver takes itself down, and a call may fail, hang or crash. Threads may run at that
// time. So every method returns kDeinitialized from then on, and nothing calls the library. Streams, events and memory
// that are left then are not freed here; the driver does that.
//
// Threads: any. A process has one driver, however many Driver objects there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/dynlib.h"
#include "base/status.h"

namespace horocache::cuda {

using Code = int;          // CUresult
using Address = uint64_t;  // CUdeviceptr
using CudaDevice = int;    // CUdevice
using Context = void*;     // CUcontext
using ModuleHandle = void*;
using FunctionHandle = void*;
using StreamHandle = void*;
using EventHandle = void*;

inline constexpr Code kSuccess = 0;
inline constexpr Code kOutOfMemory = 2;
inline constexpr Code kDeinitialized = 4;  // the driver shuts down, as does the process
inline constexpr Code kNotReady = 600;
// A call on the legacy default stream would depend on a stream that a graph is captured on.
inline constexpr Code kCaptureImplicit = 906;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr int kCaptureRelaxed = 2;    // CU_STREAM_CAPTURE_MODE_RELAXED
inline constexpr int kMultiprocessors = 16;  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
inline constexpr int kNotCapturing = 0;      // CU_STREAM_CAPTURE_STATUS_NONE

// Method, symbol, parameters, arguments.
#define HC_CUDA_FUNCTIONS(X)                                                                                         \
  X(Init, cuInit, (unsigned flags), (flags))                                                                         \
  X(DriverGetVersion, cuDriverGetVersion, (int* version), (version))                                                 \
  X(GetErrorName, cuGetErrorName, (Code code, const char** name), (code, name))                                      \
  X(GetErrorString, cuGetErrorString, (Code code, const char** text), (code, text))                                  \
  X(DeviceGetCount, cuDeviceGetCount, (int* count), (count))                                                         \
  X(DeviceGet, cuDeviceGet, (CudaDevice * device, int number), (device, number))                                     \
  X(DeviceGetAttribute, cuDeviceGetAttribute, (int* value, int attribute, CudaDevice device),                        \
    (value, attribute, device))                                                                                      \
  X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (Context * context, CudaDevice device), (context, device))     \
  X(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CudaDevice device), (device))                            \
  X(CtxPushCurrent, cuCtxPushCurrent_v2, (Context context), (context))                                               \
  X(CtxPopCurrent, cuCtxPopCurrent_v2, (Context * context), (context))                                               \
  X(CtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, (int* least, int* greatest), (least, greatest))          \
  X(ThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (int* mode), (mode))                         \
  X(StreamCreateWithPriority, cuStreamCreateWithPriority, (StreamHandle * stream, unsigned flags, int priority),     \
    (stream, flags, priority))                                                                                       \
  X(StreamDestroy, cuStreamDestroy_v2, (StreamHandle stream), (stream))                                              \
  X(StreamQuery, cuStreamQuery, (StreamHandle stream), (stream))                                                     \
  X(StreamWaitEvent, cuStreamWaitEvent, (StreamHandle stream, EventHandle event, unsigned flags),                    \
    (stream, event, flags))                                                                                          \
  X(StreamIsCapturing, cuStreamIsCapturing, (StreamHandle stream, int* status), (stream, status))                    \
  X(EventCreate, cuEventCreate, (EventHandle * event, unsigned flags), (event, flags))                               \
  X(EventDestroy, cuEventDestroy_v2, (EventHandle event), (event))                                                   \
  X(EventRecord, cuEventRecord, (EventHandle event, StreamHandle stream), (event, stream))                           \
  X(EventQuery, cuEventQuery, (EventHandle event), (event))                                                          \
  X(ModuleLoadData, cuModuleLoadData, (ModuleHandle * module, const void* image), (module, image))                   \
  X(ModuleUnload, cuModuleUnload, (ModuleHandle module), (module))                                                   \
  X(ModuleGetFunction, cuModuleGetFunction, (FunctionHandle * function, ModuleHandle module, const char* name),      \
    (function, module, name))                                                                                        \
  X(LaunchKernel, cuLaunchKernel,                                                                                    \
    (FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
     unsigned block_z, unsigned shared_bytes, StreamHandle stream, void** arguments, void** extra),                  \
    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, arguments, extra))           \
  X(MemHostAlloc, cuMemHostAlloc, (void** memory, size_t bytes, unsigned flags), (memory, bytes, flags))             \
  X(MemFreeHost, cuMemFreeHost, (void* memory), (memory))                                                            \
  X(MemAlloc, cuMemAlloc_v2, (Address * memory, size_t bytes), (memory, bytes))                                      \
  X(MemFree, cuMemFree_v2, (Address memory), (memory))                                                               \
  X(MemsetD8Async, cuMemsetD8Async, (Address to, unsigned char value, size_t bytes, StreamHandle stream),            \
    (to, value, bytes, stream))                                                                                      \
  X(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (Address to, Address from, size_t bytes, StreamHandle stream),            \
    (to, from, bytes, stream))                                                                                       \
  X(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void* to, Address from, size_t bytes, StreamHandle stream),              \
    (to, from, bytes, stream))                                                                                       \
  X(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (Address to, const void* from, size_t bytes, StreamHandle stream),        \
    (to, from, bytes, stream))

// True once exit() has begun; see Note [Exit of the process].
bool Exiting();

class Driver {
 public:
  static constexpr int kOldestVersion = 11000;  // CUDA 11.0

  // Loads and initialises the driver: the file that the user has named (`library`, empty: none), or the one that the
  // process has loaded already, or the system's libcuda.so.1. kUnsupported, naming the file and the remedy, if none can
  // be loaded, if it is older than kOldestVersion or has no device, or if `library` differs from the one that is
  // loaded.
  static StatusOr<std::shared_ptr<const Driver>> Load(const std::string& library);
  // Ok if Load would find a driver; loads it, but does not initialise it.
  static Status Find(const std::string& library);

#define HC_CUDA_METHOD(name, symbol, parameters, arguments) \
  Code name parameters const { return Exiting() ? kDeinitialized : functions_.name arguments; }
  HC_CUDA_FUNCTIONS(HC_CUDA_METHOD)
#undef HC_CUDA_METHOD

  const std::string& path() const { return library_.path(); }
  int version() const { return version_; }

  // Ok for kSuccess. Otherwise an error with the call, its code and the driver's text, and what to do about it.
  Status Check(Code code, const char* call) const;

 private:
#define HC_CUDA_POINTER(name, symbol, parameters, arguments) Code(*name) parameters = nullptr;
  struct Functions {
    HC_CUDA_FUNCTIONS(HC_CUDA_POINTER)
  };
#undef HC_CUDA_POINTER

  Driver() = default;
  Status FindFunctions();
  Status Start();

  DynamicLibrary library_;
  Functions functions_;
  int version_ = 0;
};

}  // namespace horocache::cuda
