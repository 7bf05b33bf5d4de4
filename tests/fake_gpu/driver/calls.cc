// The beginning of every call of the fake driver, and the calls on the library, devices and contexts.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "driver/driver.h"
#include "driver/options.h"

namespace fake_gpu {
namespace {

thread_local std::vector<Device*> current;  // the stack of contexts of this thread; null: none
thread_local bool in_host_function = false;
thread_local int capture_mode = kGlobal;

struct Text {
  Code code;
  const char* name;
  const char* text;
};
constexpr Text kTexts[] = {
#define FAKE_GPU_TEXT(name, value, text) {value, value == 0 ? "CUDA_SUCCESS" : "CUDA_ERROR_" #name, text},
    FAKE_GPU_CODES(FAKE_GPU_TEXT)
#undef FAKE_GPU_TEXT
};

const Text* FindText(Code code) {
  for (const Text& text : kTexts) {
    if (text.code == code) return &text;
  }
  return nullptr;
}

// Whether a capture forbids calls that are not safe; such a call ends the capture.
bool BreaksCapture(const Lock&) {
  bool breaks = false;
  for (const std::weak_ptr<Capture>& weak : state().captures) {
    const std::shared_ptr<Capture> capture = weak.lock();
    if (capture == nullptr || capture->mode == kRelaxed || capture_mode == kRelaxed) continue;
    const bool own = capture->thread == std::this_thread::get_id();
    if (!own && (capture->mode == kThreadLocal || capture_mode == kThreadLocal)) continue;
    capture->invalid = true;
    breaks = true;
  }
  return breaks;
}

Device* DeviceAt(int number) {
  if (number < 0 || number >= static_cast<int>(state().devices.size())) return nullptr;
  return state().devices[static_cast<size_t>(number)].get();
}

bool IsContext(const void* handle) {
  for (const auto& device : state().devices) {
    if (device.get() == handle) return true;
  }
  return false;
}

}  // namespace

State& state() {
  static State* const state = [] {
    auto* made = new State;
    made->random.seed(options().seed);
    return made;
  }();
  return *state;
}

Code Enter(const char* function, unsigned kind) {
  CountCall(function);
  if (Exiting()) {
    if ((kind & kAnyTime) == 0) BreakRule(std::string(function) + " was called after the exit of the process began");
    return k_DEINITIALIZED;
  }
  if (const std::optional<Code> fault = PlannedFault(function)) {
    while (*fault == kHang) std::this_thread::sleep_for(std::chrono::seconds(1));
    if (*fault == kLate) std::this_thread::sleep_for(std::chrono::seconds(3));
    if (*fault > 0) return *fault;
  }
  if ((kind & kAnyTime) != 0) return k_SUCCESS;
  Lock lock(state().mutex);
  if (!state().initialized || state().process != getpid()) return k_NOT_INITIALIZED;
  if (in_host_function && (kind & kInHostFunction) == 0) {
    lock.unlock();
    BreakRule(std::string(function) + " was called in a host function");
    return k_NOT_PERMITTED;
  }
  if ((kind & kUnsafe) != 0 && BreaksCapture(lock)) return k_STREAM_CAPTURE_UNSUPPORTED;
  return k_SUCCESS;
}

Device* Current() { return current.empty() ? nullptr : current.back(); }

void SetCurrent(Device* device) {
  if (current.empty()) {
    current.push_back(device);
  } else {
    current.back() = device;
  }
}

Code ContextError(const Device& device) {
  if (device.error != k_SUCCESS) return device.error;
  return device.references == 0 ? k_CONTEXT_IS_DESTROYED : k_SUCCESS;
}

Code UseCurrent(Device** device) {
  *device = Current();
  return *device == nullptr ? k_INVALID_CONTEXT : ContextError(**device);
}

void Spoil(Device* device, Code error) {
  const std::lock_guard lock(state().mutex);
  if (device->error == k_SUCCESS) device->error = error;
  state().changed.notify_all();
}

void SetHostFunctionThread(bool is_one) { in_host_function = is_one; }

std::string LedgerText() {
  const Lock lock(state().mutex);
  size_t contexts = 0;
  size_t allocations = 0;
  for (const auto& device : state().devices) {
    contexts += device->references > 0 ? 1 : 0;
    allocations += device->allocations.size();
  }
  std::string text = "{\"contexts\": " + std::to_string(contexts) +
                     ", \"allocations\": " + std::to_string(allocations) +
                     ", \"registrations\": " + std::to_string(state().host.size()) +
                     ", \"streams\": " + std::to_string(state().streams.size()) +
                     ", \"events\": " + std::to_string(state().events.size()) +
                     ", \"modules\": " + std::to_string(state().modules.size());
  for (const auto& [kind, number] : state().communicators) text += ", \"" + kind + "\": " + std::to_string(number);
  return text + "}\n";
}

void WriteLedger(const std::string& path) {
  std::ofstream file(path + "." + std::to_string(getpid()), std::ios::trunc);
  file << LedgerText();
}

// The objects that exist at the moment, counted, as JSON; returns the bytes that are needed.
FAKE_GPU_API size_t fake_gpu_ledger(char* text, size_t size) {
  const std::string ledger = LedgerText();
  std::snprintf(text, size, "%s", ledger.c_str());
  return ledger.size() + 1;
}

// ---- library

FAKE_GPU_API Code cuInit(unsigned flags) {
  if (const Code refused = Enter(__func__, kAnyTime)) return refused;
  if (flags != 0) return k_INVALID_VALUE;
  const Lock lock(state().mutex);
  if (state().initialized) return state().process == getpid() ? k_SUCCESS : k_NOT_INITIALIZED;
  if (options().devices == 0) return k_NO_DEVICE;
  CatchHostAccess();
  for (int number = 0; number < options().devices; ++number) {
    auto device = std::make_unique<Device>();
    device->number = number;
    state().devices.push_back(std::move(device));
  }
  state().initialized = true;
  state().process = getpid();
  return k_SUCCESS;
}

FAKE_GPU_API Code cuDriverGetVersion(int* version) {
  if (const Code refused = Enter(__func__, kAnyTime | kInHostFunction)) return refused;
  if (version == nullptr) return k_INVALID_VALUE;
  *version = options().version;
  return k_SUCCESS;
}

FAKE_GPU_API Code cuGetErrorName(Code code, const char** name) {
  if (const Code refused = Enter(__func__, kAnyTime | kInHostFunction)) return refused;
  const Text* const text = FindText(code);
  *name = text == nullptr ? nullptr : text->name;
  return text == nullptr ? k_INVALID_VALUE : k_SUCCESS;
}

FAKE_GPU_API Code cuGetErrorString(Code code, const char** string) {
  if (const Code refused = Enter(__func__, kAnyTime | kInHostFunction)) return refused;
  const Text* const text = FindText(code);
  *string = text == nullptr ? nullptr : text->text;
  return text == nullptr ? k_INVALID_VALUE : k_SUCCESS;
}

FAKE_GPU_API Code cuModuleGetLoadingMode(int* mode) {
  if (const Code refused = Enter(__func__)) return refused;
  const char* const wish = std::getenv("CUDA_MODULE_LOADING");
  *mode = wish != nullptr && std::strcmp(wish, "EAGER") == 0 ? 1 : 2;
  return k_SUCCESS;
}

// ---- devices

FAKE_GPU_API Code cuDeviceGetCount(int* count) {
  if (const Code refused = Enter(__func__)) return refused;
  if (count == nullptr) return k_INVALID_VALUE;
  *count = options().devices;
  return k_SUCCESS;
}

FAKE_GPU_API Code cuDeviceGet(int* device, int number) {
  if (const Code refused = Enter(__func__)) return refused;
  if (DeviceAt(number) == nullptr) return k_INVALID_DEVICE;
  *device = number;
  return k_SUCCESS;
}

FAKE_GPU_API Code cuDeviceGetName(char* name, int size, int device) {
  if (const Code refused = Enter(__func__)) return refused;
  if (DeviceAt(device) == nullptr) return k_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(size), "Fake GPU %d", device);
  return k_SUCCESS;
}

// The same bytes in every process, since processes that share a fake device share its number.
FAKE_GPU_API Code cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  if (const Code refused = Enter(__func__)) return refused;
  if (DeviceAt(device) == nullptr) return k_INVALID_DEVICE;
  std::memset(uuid, 0, 16);
  uuid[15] = static_cast<unsigned char>(device + 1);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuDeviceTotalMem_v2(size_t* bytes, int device) {
  if (const Code refused = Enter(__func__)) return refused;
  if (DeviceAt(device) == nullptr) return k_INVALID_DEVICE;
  *bytes = options().memory;
  return k_SUCCESS;
}

FAKE_GPU_API Code cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (const Code refused = Enter(__func__)) return refused;
  if (DeviceAt(device) == nullptr) return k_INVALID_DEVICE;
  static const std::map<int, int> values = {{16, 132}, {20, 0},  {33, 0},  {40, 3}, {41, 1},  {75, 9},
                                            {76, 0},   {88, 0},  {91, 1},  {99, 1}, {102, 0}, {103, 0},
                                            {115, 0},  {116, 0}, {123, 1}, {125, 0}};
  const auto found = values.find(attribute);
  if (found == values.end()) return k_INVALID_VALUE;
  *value = found->second;
  return k_SUCCESS;
}

// ---- contexts

FAKE_GPU_API Code cuDevicePrimaryCtxRetain(void** context, int number) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  Device* const device = DeviceAt(number);
  if (device == nullptr) return k_INVALID_DEVICE;
  if (device->error != k_SUCCESS) return device->error;
  if (device->references == 0) {
    if (!MapMemory(device)) return k_OUT_OF_MEMORY;
    device->legacy = std::make_unique<Stream>();
    device->legacy->device = device;
    device->legacy->legacy = true;
    device->legacy->blocking = true;
    device->released = false;
  }
  ++device->references;
  *context = device;
  return k_SUCCESS;
}

FAKE_GPU_API Code cuDevicePrimaryCtxRelease_v2(int number) {
  if (const Code refused = Enter(__func__)) return refused;
  Lock lock(state().mutex);
  Device* const device = DeviceAt(number);
  if (device == nullptr) return k_INVALID_DEVICE;
  if (device->references == 0) return k_INVALID_CONTEXT;
  if (device->references > 1) {
    --device->references;
    return k_SUCCESS;
  }
  if (device->error == k_SUCCESS) WaitForDevice(&lock, device);
  device->references = 0;
  device->released = true;
  ReleaseMemory(device);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuDevicePrimaryCtxGetState(int number, unsigned* flags, int* active) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  const Device* const device = DeviceAt(number);
  if (device == nullptr) return k_INVALID_DEVICE;
  *flags = 0;
  *active = device->references > 0 ? 1 : 0;
  return k_SUCCESS;
}

FAKE_GPU_API Code cuCtxGetCurrent(void** context) {
  if (const Code refused = Enter(__func__)) return refused;
  *context = Current();
  return k_SUCCESS;
}

FAKE_GPU_API Code cuCtxSetCurrent(void* context) {
  if (const Code refused = Enter(__func__)) return refused;
  if (context != nullptr && !IsContext(context)) return k_INVALID_CONTEXT;
  SetCurrent(static_cast<Device*>(context));
  return k_SUCCESS;
}

FAKE_GPU_API Code cuCtxPushCurrent_v2(void* context) {
  if (const Code refused = Enter(__func__)) return refused;
  if (!IsContext(context)) return k_INVALID_CONTEXT;
  if (current.empty()) current.push_back(nullptr);
  current.push_back(static_cast<Device*>(context));
  return k_SUCCESS;
}

FAKE_GPU_API Code cuCtxPopCurrent_v2(void** context) {
  if (const Code refused = Enter(__func__)) return refused;
  if (Current() == nullptr) return k_INVALID_CONTEXT;
  if (context != nullptr) *context = Current();
  current.pop_back();
  return k_SUCCESS;
}

FAKE_GPU_API Code cuCtxGetDevice(int* device) {
  if (const Code refused = Enter(__func__)) return refused;
  if (Current() == nullptr) return k_INVALID_CONTEXT;
  *device = Current()->number;
  return k_SUCCESS;
}

FAKE_GPU_API Code cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  Device* device = nullptr;
  if (const Code refused = Enter(__func__)) return refused;
  if (const Code unusable = UseCurrent(&device)) return unusable;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return k_SUCCESS;
}

FAKE_GPU_API Code cuCtxSynchronize() {
  Device* device = nullptr;
  if (const Code refused = Enter(__func__, kUnsafe)) return refused;
  if (const Code unusable = UseCurrent(&device)) return unusable;
  Lock lock(state().mutex);
  WaitUntil(&lock, [device] { return device->error != k_SUCCESS || !Busy(*device); });
  return ContextError(*device);
}

FAKE_GPU_API Code cuThreadExchangeStreamCaptureMode(int* mode) {
  if (const Code refused = Enter(__func__)) return refused;
  std::swap(*mode, capture_mode);
  return k_SUCCESS;
}

}  // namespace fake_gpu
