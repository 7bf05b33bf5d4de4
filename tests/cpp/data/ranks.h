// N ranks of the data plane in one process: N data areas on the heap, N sets of backends, and ways to drive them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cuda/fake_driver.h"
#include "cuda/stream_event.h"
#include "data/backend.h"
#include "data/row_layout.h"
#include "testing/fake_device_backend.h"

namespace horocache::data::testing {

using Bytes = std::vector<std::byte>;

// The data of one rank: its inputs, and the memory for its results.
struct RankData {
  Collective collective;
  std::vector<Bytes> inputs;
  std::vector<Bytes> outputs;  // empty: in place
  VariableOutput variable;
  Bytes result;  // result of an operation that allocates
  int allocations = 0;
};

// Small tiles, so that little data takes several.
inline BackendOptions SmallTiles() {
  BackendOptions options;
  options.tile_bytes = 1024;
  options.staging_tile_bytes = 1024;
  return options;
}

// The class of a backend's tensors. Besides the product's backends, tests have "fakedevice", and "staged", which is
// shm, or loopback for one rank, on tensors of the fake CUDA driver; "nccl" uses the fake NCCL.
inline wire::DeviceClass ClassOf(const std::string& backend) {
  if (backend == "staged" || backend == "nccl") return wire::DeviceClass::kCuda;
  return backend == "fakedevice" ? wire::DeviceClass::kFake : wire::DeviceClass::kCpu;
}

// The use of the fake NCCL. Its ranks share the fake device.
inline NcclOptions FakeNccl() {
  static const bool shared = setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1) == 0;
  EXPECT_TRUE(shared);
  StatusOr<std::shared_ptr<const cuda::Nccl>> library =
      cuda::Nccl::Load({HC_FAKE_NCCL_FOLDER "/libnccl_fake_23007.so.2", {}});
  EXPECT_TRUE(library.ok()) << library.status().message();
  NcclOptions options;
  options.library = std::move(*library);
  options.required = true;
  options.timeout_ns = 60 * kNsPerS;
  return options;
}

// Runs body(rank) for every rank, each on its own thread.
inline void RunOnThreads(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) threads.emplace_back([&body, r] { body(r); });
  for (std::thread& thread : threads) thread.join();
}

class Ranks {
 public:
  static constexpr size_t kAreaBytes = 1 << 20;

  // Every rank has a fake device, a staged backend and one of NCCL, too, with shares of its memory.
  explicit Ranks(int size, const BackendOptions& options = {}, size_t area_bytes = kAreaBytes,
                 const std::vector<std::span<std::byte>>& regions = {}, int64_t device_delay_ns = 0) {
    const size_t share_bytes = area_bytes / 8 / 64 * 64;
    for (int r = 0; r < size; ++r) {
      areas_.push_back({static_cast<std::byte*>(std::aligned_alloc(64, area_bytes)), &std::free});
      std::memset(areas_.back().get(), 0, area_bytes);
    }
    for (int r = 0; r < size; ++r) {
      SharedArea area;
      area.rank = r;
      area.size = size;
      for (const auto& memory : areas_) area.data.push_back(memory.get());
      area.data_bytes = area_bytes;
      area.regions = regions;
      area.ring = [this](int rank) { rings_[static_cast<size_t>(rank)].fetch_add(1); };
      const SharedArea of_device = PartOf(area, area_bytes - share_bytes, share_bytes);
      const SharedArea of_staged = PartOf(area, area_bytes - 2 * share_bytes, share_bytes);
      const SharedArea of_nccl = PartOf(area, area_bytes - 3 * share_bytes, share_bytes);
      auto backends = MakeBackends(PartOf(area, 0, area_bytes - 3 * share_bytes), options);
      EXPECT_TRUE(backends.ok()) << backends.status().message();
      auto device = horocache::testing::MakeFakeDeviceBackend(of_device, options, device_delay_ns);
      EXPECT_TRUE(device.ok()) << device.status().message();
      backends->push_back(std::move(*device));
      BackendOptions with_devices = options;
      with_devices.devices = cuda::testing::FakeDriver::Get().devices();
      auto staged = MakeBackends(of_staged, with_devices);
      EXPECT_TRUE(staged.ok()) << staged.status().message();
      staged_.push_back(std::move(staged->front()));
      with_devices.nccl = FakeNccl();
      with_devices.nccl.window_bytes = options.nccl.window_bytes;
      auto nccl = MakeBackends(of_staged, with_devices, {}, {of_nccl, {}});
      EXPECT_TRUE(nccl.ok()) << nccl.status().message();
      nccl_.push_back(std::move(nccl->front()));
      shared_.push_back(std::move(area));
      backends_.push_back(std::move(*backends));
    }
  }

  // NCCL's ranks leave a communicator together.
  ~Ranks() {
    RunOnThreads(size(), [this](int rank) { nccl_[static_cast<size_t>(rank)].reset(); });
  }

  int size() const { return static_cast<int>(areas_.size()); }
  Backend& backend(int rank, const std::string& name) {
    if (name == "staged") return *staged_[static_cast<size_t>(rank)];
    if (name == "nccl") return *nccl_[static_cast<size_t>(rank)];
    for (auto& backend : backends_[static_cast<size_t>(rank)]) {
      if (backend->traits().name == name) return *backend;
    }
    ADD_FAILURE() << "no backend " << name;
    std::abort();
  }
  const SharedArea& area(int rank) const { return shared_[static_cast<size_t>(rank)]; }
  uint64_t rings(int rank) const { return rings_[static_cast<size_t>(rank)].load(); }

 private:
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> areas_;
  std::vector<SharedArea> shared_;
  std::vector<std::vector<std::unique_ptr<Backend>>> backends_;
  std::vector<std::unique_ptr<Backend>> staged_, nccl_;
  std::atomic<uint64_t> rings_[64] = {};
};

// Points the collective to the rank's vectors. The RankData must not move afterwards.
inline void Bind(RankData* data) {
  Collective& c = data->collective;
  c.segments.clear();
  for (size_t i = 0; i < data->inputs.size(); ++i) {
    Segment segment;
    segment.count = static_cast<int64_t>(data->inputs[i].size() / DTypeBytes(c.dtype));
    segment.input = data->inputs[i].data();
    segment.output = data->outputs.empty() ? data->inputs[i].data() : data->outputs[i].data();
    c.segments.push_back(segment);
  }
}

// As Bind, but the callback allocates the result, which is data->result.
inline void BindVariable(RankData* data) {
  Bind(data);
  data->variable.allocate = [data](int64_t bytes) -> StatusOr<std::byte*> {
    ++data->allocations;
    data->result.assign(static_cast<size_t>(bytes), std::byte{0x5a});
    return data->result.data();
  };
  data->collective.output = &data->variable;
  for (Segment& segment : data->collective.segments) segment.output = nullptr;
}

// Moves a collective's tensors into memory of the fake CUDA device, and back.
class OnDevice {
 public:
  explicit OnDevice(Collective* collective) : bytes_(DTypeBytes(collective->dtype)) {
    for (Segment& segment : collective->segments) {
      const std::byte* const input = segment.input;
      segment.input = Moved(const_cast<std::byte*>(input), segment.count);
      segment.output =
          segment.output == input ? const_cast<std::byte*>(segment.input) : Moved(segment.output, segment.count);
    }
  }
  void Fetch() {
    for (const Copy& copy : copies_) copy.memory->Read(copy.host);
  }

 private:
  struct Copy {
    std::byte* host;
    std::unique_ptr<cuda::testing::DeviceMemory> memory;
  };

  std::byte* Moved(std::byte* host, int64_t count) {
    if (host == nullptr || count == 0) return nullptr;
    auto memory = std::make_unique<cuda::testing::DeviceMemory>(static_cast<size_t>(count) * bytes_);
    memory->Write(host);
    copies_.push_back({host, std::move(memory)});
    return copies_.back().memory->data();
  }

  const size_t bytes_;
  std::vector<Copy> copies_;
};

// Of the program's stream, as an operation has it.
class ProgramEvent : public Event {
 public:
  explicit ProgramEvent(cuda::StreamHandle stream) : device_(cuda::testing::FakeDriver::Get().device()) {
    auto made = cuda::StreamEvent::Record(device_, stream);
    EXPECT_TRUE(made.ok());
    event_.emplace(std::move(*made));
  }
  bool Ready() override { return event_->Happened(); }
  Status HoldBack(cuda::Stream* stream, bool* waits) override {
    *waits = true;
    return event_->HoldBack(stream);
  }

 private:
  const std::shared_ptr<cuda::Device> device_;
  std::optional<cuda::StreamEvent> event_;
};

// Tensors of one rank that a stream of the program computes: there are zeros before.
class LateTensors {
 public:
  // `collective` is on the device.
  explicit LateTensors(Collective* collective) {
    const auto& fake = cuda::testing::FakeDriver::Get();
    const auto copy =
        fake.Function<cuda::Code(cuda::Address, cuda::Address, size_t, cuda::StreamHandle)>("cuMemcpyDtoDAsync_v2");
    const cuda::Device::Scope scope(*fake.device());
    const size_t element = DTypeBytes(collective->dtype);
    for (const Segment& segment : collective->segments) {
      const size_t bytes = static_cast<size_t>(segment.count) * element;
      if (bytes == 0) continue;
      const auto place = reinterpret_cast<cuda::Address>(segment.input);
      values_.push_back(std::make_unique<cuda::testing::DeviceMemory>(bytes));
      const auto values = reinterpret_cast<cuda::Address>(values_.back()->data());
      Move(values, place, bytes);
      Clear(place, bytes);
      EXPECT_EQ(copy(place, values, bytes, held_.handle()), cuda::kSuccess);
    }
    computed_.emplace(held_.handle());
    collective->ready = &*computed_;
  }
  void Compute() { held_.Release(); }

 private:
  static void Move(cuda::Address to, cuda::Address from, size_t bytes) {
    const auto& fake = cuda::testing::FakeDriver::Get();
    Bytes host(bytes);
    EXPECT_EQ(fake.Function<cuda::Code(void*, cuda::Address, size_t)>("cuMemcpyDtoH_v2")(host.data(), from, bytes),
              cuda::kSuccess);
    Write(to, host);
  }
  static void Clear(cuda::Address at, size_t bytes) { Write(at, Bytes(bytes)); }
  static void Write(cuda::Address at, const Bytes& host) {
    const auto write =
        cuda::testing::FakeDriver::Get().Function<cuda::Code(cuda::Address, const void*, size_t)>("cuMemcpyHtoD_v2");
    EXPECT_EQ(write(at, host.data(), host.size()), cuda::kSuccess);
  }

  std::vector<std::unique_ptr<cuda::testing::DeviceMemory>> values_;
  cuda::testing::HeldStream held_;
  std::optional<ProgramEvent> computed_;
};

// The number of seeds of the fake driver that a test tries. With a seed, the fake moves the work of streams within
// calls, in an order drawn from it.
inline uint64_t Interleavings() {
  const char* const given = std::getenv("HC_TEST_INTERLEAVINGS");
  return given == nullptr ? 300 : std::strtoull(given, nullptr, 10);
}

// Copies a result that the backend left on the device to data->result.
inline void FetchResult(RankData* data, int rank) {
  if (data->variable.on_device == nullptr) return;
  int64_t rows = 0;
  for (const int64_t from : data->variable.rows) rows += from;
  const Collective& c = data->collective;
  if (c.op == wire::Op::kReducescatter) rows = data->variable.rows[static_cast<size_t>(rank)];
  if (!c.receive_starts.empty()) rows = ResultRows(c.receive_starts, c.receive_rows, data->variable.rows);
  ++data->allocations;
  data->result.resize(static_cast<size_t>(rows * c.row_elements) * DTypeBytes(c.dtype));
  const auto device = cuda::testing::FakeDriver::Get().device();
  const cuda::Device::Scope scope(*device);
  const auto copy =
      cuda::testing::FakeDriver::Get().Function<cuda::Code(void*, cuda::Address, size_t)>("cuMemcpyDtoH_v2");
  EXPECT_EQ(
      copy(data->result.data(), reinterpret_cast<cuda::Address>(data->variable.on_device->data()), data->result.size()),
      cuda::kSuccess);
  data->variable.on_device.reset();
}

// Starts one collective on every rank and tests all ranks in turn until all are finished. `late`: the program computes
// the CUDA tensors only then, on one rank after the other.
inline std::vector<Status> RunInTurn(Ranks* ranks, const std::string& backend, std::vector<RankData>* data,
                                     int most_turns = 1000000, bool late = false) {
  std::vector<OnDevice> on_device;
  std::vector<std::unique_ptr<LateTensors>> computed;
  std::vector<std::unique_ptr<CollectiveTask>> operations;
  for (int r = 0; r < ranks->size(); ++r) {
    Collective c = (*data)[static_cast<size_t>(r)].collective;
    if (c.device_class == wire::DeviceClass::kCuda) on_device.emplace_back(&c);
    if (late) computed.push_back(std::make_unique<LateTensors>(&c));
    const Status supported = ranks->backend(r, backend).Supports(c);
    EXPECT_TRUE(supported.ok()) << supported.message();
    operations.push_back(ranks->backend(r, backend).Start(c));
  }
  std::vector<Status> statuses(static_cast<size_t>(ranks->size()));
  std::vector<bool> done(static_cast<size_t>(ranks->size()), false);
  size_t finished = 0;
  const int64_t deadline_ns = DeadlineNs(60);
  for (int turn = 0; finished < operations.size(); ++turn) {
    // NCCL connects in threads, so that the number of turns says nothing.
    if (backend == "nccl" ? NowNs() > deadline_ns : turn == most_turns) {
      ADD_FAILURE() << "not finished after " << turn << " turns";
      break;
    }
    bool any = false;
    if (static_cast<size_t>(turn) < computed.size()) computed[static_cast<size_t>(turn)]->Compute();
    for (size_t r = 0; r < operations.size(); ++r) {
      if (done[r]) continue;
      if (operations[r]->Test()) {
        done[r] = true;
        any = true;
        ++finished;
        statuses[r] = operations[r]->status();
      }
    }
    if (!any && (backend == "fakedevice" || backend == "nccl")) std::this_thread::yield();
  }
  for (OnDevice& tensors : on_device) tensors.Fetch();
  for (size_t r = 0; r < data->size(); ++r) FetchResult(&(*data)[r], static_cast<int>(r));
  return statuses;
}

inline Status Finish(CollectiveTask* operation) {
  while (!operation->Test()) {
    if (!operation->progressed()) std::this_thread::yield();
  }
  return operation->status();
}

}  // namespace horocache::data::testing
