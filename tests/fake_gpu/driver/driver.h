// The state of the fake driver: devices, memory, streams, events, captures.
//
// One mutex, state().mutex, guards all of it. Work of streams runs without it, one piece per stream at a time: on a
// thread per stream, or, with FAKE_GPU_SEED, inside the callers' calls. Nothing is destroyed at exit: threads may still
// use it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "driver/abi.h"

namespace fake_gpu {

using Lock = std::unique_lock<std::mutex>;

// A piece of work of a stream.
class Work {
 public:
  enum class Outcome { kDone, kAgain };  // kAgain: it cannot go on yet

  virtual ~Work() = default;
  // Runs until the end, or until it has to wait. Called without the lock.
  virtual Outcome Run() = 0;
  // Called after kDone with the lock held, which is kept until the work has left its stream. So a thread that sees what
  // this changes finds the stream without the work.
  virtual void Ended() {}
};

// Makes the work of a call; called once, or for every launch of a graph.
using MakeWork = std::function<std::unique_ptr<Work>()>;

// One record of an event; complete when the stream has come to it.
struct Record {
  std::atomic<bool> complete = false;
  int64_t at_ns = 0;
  uint64_t capture = 0;  // id of the capture in which it was recorded; 0: in none
};

struct Capture {
  uint64_t id = 0;
  CaptureMode mode = kGlobal;
  std::thread::id thread;
  bool invalid = false;
  std::vector<MakeWork> work;
};

struct Device;

struct Stream {
  Device* device = nullptr;
  bool blocking = false;  // it and the legacy stream wait for each other
  bool legacy = false;
  int priority = 0;
  unsigned flags = 0;
  struct Item {
    uint64_t number = 0;  // by order of the calls
    std::unique_ptr<Work> work;
    int64_t begin_ns = 0;  // when it may begin; 0: not known yet
  };
  std::deque<Item> items;
  bool running = false;    // the first item runs
  bool destroyed = false;  // the thread ends when the stream is empty
  bool served = false;     // has a thread
  std::shared_ptr<Capture> capture;
};

struct Event {
  Device* device = nullptr;
  unsigned flags = 0;
  std::shared_ptr<Record> last;  // null: never recorded
};

struct Module {
  Device* device = nullptr;
  struct Entry {
    std::string name;
    std::vector<size_t> parameter_sizes;
  };
  std::map<std::string, std::unique_ptr<Entry>> entries;
};

struct Graph {
  std::vector<MakeWork> work;
};

// A device and its primary context. A context's handle is the device's address.
struct Device {
  int number = 0;
  int references = 0;      // of the primary context
  bool released = false;   // it was active and is not any more
  Code error = k_SUCCESS;  // what spoiled the context
  // Held by calls that wait for all streams of the device, and for a moment by every call that queues work: so the
  // latter wait for the former, as with the real driver.
  std::mutex context_lock;
  std::unique_ptr<Stream> legacy;
  std::byte* addresses = nullptr;  // without access: what the caller gets
  std::byte* memory = nullptr;     // the same memory, for the fake
  struct Allocation {
    size_t size = 0;
    bool exportable = false;  // of ncclMemAlloc
  };
  std::map<Address, Allocation> allocations;
  uint64_t allocated = 0;
  int file = -1;
};

struct HostRange {
  size_t size = 0;
  unsigned flags = 0;
  bool allocated = false;  // by cuMemHostAlloc
  Device* device = nullptr;
  // A second mapping of shared memory, which the fake uses: registered memory stays usable when the program unmaps it,
  // as with the real driver. Null: private memory, which is used where it is.
  std::byte* alias = nullptr;
  size_t alias_bytes = 0;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;  // work ended or was queued
  bool initialized = false;
  pid_t process = 0;  // that called cuInit
  std::vector<std::unique_ptr<Device>> devices;
  std::map<Address, HostRange> host;
  std::unordered_map<const void*, std::shared_ptr<Stream>> streams;
  std::unordered_map<const void*, std::unique_ptr<Event>> events;
  std::unordered_map<const void*, std::unique_ptr<Module>> modules;
  std::unordered_map<const void*, std::unique_ptr<Graph>> graphs;
  std::unordered_set<const void*> destroyed_streams;
  std::unordered_set<const void*> destroyed_events;
  std::vector<std::weak_ptr<Capture>> captures;
  uint64_t last_capture = 0;
  uint64_t last_item = 0;
  std::map<std::string, uint64_t> communicators;  // ledger of the fake NCCL: kind and number
  std::mt19937_64 random;
};

FAKE_GPU_INTERNAL State& state();

// ---- calls (calls.cc)

enum : unsigned {
  kAnyTime = 1,  // before cuInit, too
  kInHostFunction = 2,
  kUnsafe = 4,  // not while a capture of mode GLOBAL, or of mode THREAD_LOCAL in this thread, is running
};

// Begins a call: counts it, and refuses it where the real driver does. k_SUCCESS: go on.
Code Enter(const char* function, unsigned kind = 0);
// The device whose context is current in this thread; null: none.
FAKE_GPU_INTERNAL Device* Current();
// The current device if its context is usable: INVALID_CONTEXT, CONTEXT_IS_DESTROYED or the error that spoiled it.
Code UseCurrent(Device** device);
// The code with which calls on objects of a device fail: k_SUCCESS while its context is usable.
Code ContextError(const Device& device);
// Sets what spoiled a device's context; the first error stays.
FAKE_GPU_INTERNAL void Spoil(Device* device, Code error);
void SetHostFunctionThread(bool is_one);
void SetCurrent(Device* device);

// ---- streams (streams.cc)

// The stream of a handle, with the special handles; the code if there is none.
FAKE_GPU_INTERNAL Code FindStream(const Lock&, const void* handle, Stream** stream);
// Queues work, or adds it to the stream's capture. The lock is held.
FAKE_GPU_INTERNAL Code Enqueue(const Lock&, Stream* stream, MakeWork make);
FAKE_GPU_INTERNAL bool Busy(const Stream& stream);
FAKE_GPU_INTERNAL bool Busy(const Device& device);
// Waits until `done`, while streams work. The lock is held, and released for the time.
FAKE_GPU_INTERNAL void WaitUntil(Lock* lock, const std::function<bool()>& done);
// Waits for all streams of the device, as calls do that change its memory.
void WaitForDevice(Lock* lock, Device* device);
// With FAKE_GPU_SEED: runs a random number of pieces of work. The lock is held, and released for the time.
FAKE_GPU_INTERNAL void Advance(Lock* lock);
int64_t Now();

// ---- memory (memory.cc)

// True if every byte is in an allocation of a device. They may be several, one behind the other: kernels see addresses,
// while a copy of the driver takes memory of one allocation only (FindAllocation).
FAKE_GPU_INTERNAL bool IsAllocated(const Lock&, Address address, size_t bytes);
// Where the fake finds `bytes` at an address that a caller names: memory of a device, or of the host. Null if a part of
// the device's is not allocated; host memory is not checked.
FAKE_GPU_INTERNAL std::byte* Reach(const Lock&, Address address, size_t bytes);
// The device that has the address; null: none.
FAKE_GPU_INTERNAL Device* OwnerOf(const Lock&, Address address);
FAKE_GPU_INTERNAL bool IsPinned(const Lock&, Address address, size_t bytes);
FAKE_GPU_INTERNAL Code Allocate(const Lock&, Device* device, size_t bytes, bool exportable, Address* address);
FAKE_GPU_INTERNAL Code Free(const Lock&, Address address);
FAKE_GPU_INTERNAL std::optional<Device::Allocation> FindAllocation(const Lock&, Address address, size_t bytes);
bool MapMemory(Device* device);
void ReleaseMemory(Device* device);
void CatchHostAccess();

// ---- kernels (kernels.cc)

// A kernel's arguments by position.
struct Launch {
  std::string name;
  std::vector<std::vector<std::byte>> arguments;

  template <typename T>
  T Argument(size_t position) const {
    T value{};
    std::copy_n(arguments.at(position).data(), std::min(sizeof value, arguments[position].size()),
                reinterpret_cast<std::byte*>(&value));
    return value;
  }
};
// True if the fake has a reference of the kernel.
bool HasKernel(const std::string& name);
std::unique_ptr<Work> MakeKernel(Device* device, const Launch& launch);

// Writes what still exists as JSON.
void WriteLedger(const std::string& path);
std::string LedgerText();

}  // namespace fake_gpu
