#include "program/local_run.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/memory.h"
#include "data/fusion_buffer.h"
#include "program/execution.h"
#include "program/link_plan.h"
#include "program/shm_links.h"

namespace horocache::program {
namespace {

constexpr size_t kAreaBytes = 4 << 20;
constexpr int64_t kBudgetBytes = 256 << 10;
constexpr size_t kMostLines = 64;

// Aligned zeros. Uses calloc, because pages that are never touched take no time; most of a large area is untouched.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes) : whole_(std::calloc(bytes + kAlignment, 1)) {}
  // Null if the allocation failed.
  std::byte* get() const {
    const uintptr_t first = reinterpret_cast<uintptr_t>(whole_.get());
    return reinterpret_cast<std::byte*>(RoundUp(first, kAlignment));
  }

 private:
  static constexpr uintptr_t kAlignment = 128;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> whole_;
};

// One rank: its links, its memory and its current run.
struct Rank {
  std::unique_ptr<ShmLinks> links;
  std::unique_ptr<DelayedLinks> delayed;
  std::vector<std::byte*> buffers;
  Memory scratch;
  std::unique_ptr<Execution> run;
};

class Host {
 public:
  static StatusOr<std::unique_ptr<Host>> Make(const LocalRun& run);

  StatusOr<std::vector<int64_t>> RunOnThreads();
  StatusOr<std::vector<int64_t>> RunInTurns();

 private:
  Host(const LocalRun& run, Program program, const Sizes& sizes)
      : run_(run), program_(std::move(program)), wirings_(WireUp(program_)), sizes_(sizes) {}
  Status Prepare();
  Status CheckDelays() const;
  Status PrepareRank(int number);
  void Begin(int number);
  // True if the rank has ended its run.
  bool Advance(int number, bool* moved);
  Status Stuck() const;

  const LocalRun& run_;
  const Program program_;
  const Wirings wirings_;
  const Sizes sizes_;
  LinkPlan plan_;
  int64_t tile_ = 1;
  data::FoldFunction fold_ = nullptr;
  std::vector<Memory> areas_;
  std::unique_ptr<Delays> delays_;
  std::vector<Rank> ranks_;
};

StatusOr<std::unique_ptr<Host>> Host::Make(const LocalRun& run) {
  StatusOr<Program> program = DecodeProgram(run.packed);
  if (!program.ok()) return program.status();
  const auto element_bytes = static_cast<int64_t>(DTypeBytes(run.dtype));
  const Sizes sizes(run.elements, element_bytes, program->classes, program->refinement, program->uniform);
  if (!sizes.fits()) {
    return InvalidArgumentError("the program's chunks must have one size, and " + std::to_string(run.elements) +
                                " elements cannot be divided so");
  }
  std::unique_ptr<Host> host(new Host(run, std::move(*program), sizes));
  HC_RETURN_IF_ERROR(host->Prepare());
  return host;
}

Status Host::CheckDelays() const {
  const std::vector<int>& ports = run_.delays.port_of;
  const auto pairs = static_cast<size_t>(program_.ranks) * static_cast<size_t>(program_.ranks);
  const auto most = static_cast<int>(run_.delays.ports.size());
  const bool known = std::ranges::all_of(ports, [most](int port) { return port < most; });
  if ((ports.empty() && most == 0) || (ports.size() == pairs && known)) return Status::Ok();
  return InvalidArgumentError("each pair of " + std::to_string(program_.ranks) +
                              " ranks needs one of the ports; there are " + std::to_string(ports.size()));
}

Status Host::Prepare() {
  HC_RETURN_IF_ERROR(CheckDelays());
  if (static_cast<int>(run_.reduce_op) >= wire::kNumReduceOps || static_cast<int>(run_.protocol) >= kNumProtocols ||
      run_.repetitions < 1 || run_.slots < 0 || run_.slots > 8 || run_.message_bytes < 0 || run_.elements < 1) {
    return InvalidArgumentError("no such operation, protocol, number of slots, bytes, elements or repetitions");
  }
  HC_RETURN_IF_ERROR(data::CheckFold(run_.dtype, run_.reduce_op, {}));
  fold_ = data::FindKernels("auto").value()->Find(run_.dtype, run_.reduce_op);
  const auto ranks = static_cast<size_t>(program_.ranks);
  if (run_.inputs.size() != ranks || run_.outputs.size() != ranks) {
    return InvalidArgumentError("the program is for " + std::to_string(ranks) + " ranks; there are buffers of " +
                                std::to_string(run_.inputs.size()));
  }
  data::SharedArea area;
  area.size = program_.ranks;
  area.data_bytes = kAreaBytes;
  // The ranks share an address space, so the region of each rank is all of memory.
  area.regions.assign(ranks, {static_cast<std::byte*>(nullptr), std::numeric_limits<size_t>::max() / 2});
  for (size_t rank = 0; rank < ranks; ++rank) {
    areas_.emplace_back(kAreaBytes);
    area.data.push_back(areas_.back().get());
  }
  ranks_.resize(ranks);
  for (int rank = 0; rank < program_.ranks; ++rank) {
    area.rank = rank;
    ranks_[static_cast<size_t>(rank)].links = std::make_unique<ShmLinks>(area);
    HC_RETURN_IF_ERROR(PrepareRank(rank));
  }
  const LinkWish wish{run_.protocol, run_.slots, run_.message_bytes};
  std::string why;
  if (!PlanLinks(program_, wirings_, sizes_, wish, ranks_[0].links.get(), &plan_, &why))
    return InvalidArgumentError(why);
  tile_ = TileElements(program_, sizes_, plan_.slot_bytes);
  delays_ = std::make_unique<Delays>(run_.delays, wirings_, plan_.slots);
  return Status::Ok();
}

Status Host::PrepareRank(int number) {
  const auto index = static_cast<size_t>(number);
  const RankProgram& program = program_.programs[index];
  Rank& rank = ranks_[index];
  rank.buffers.assign(program.extents.size(), nullptr);
  const auto bytes_of = [&](size_t buffer) {
    return static_cast<size_t>(BufferBytes(program, static_cast<int>(buffer), sizes_));
  };
  const std::span<std::byte> given[] = {run_.inputs[index], run_.outputs[index]};
  for (size_t buffer = 0; buffer < 2; ++buffer) {
    if (given[buffer].size() != bytes_of(buffer)) {
      return InvalidArgumentError("rank " + std::to_string(number) + " has " + std::to_string(given[buffer].size()) +
                                  " bytes for its " + (buffer == kInput ? "input" : "output") + ", which takes " +
                                  std::to_string(bytes_of(buffer)));
    }
    rank.buffers[buffer] = given[buffer].data();
  }
  size_t all = 0;
  for (size_t buffer = 2; buffer < rank.buffers.size(); ++buffer) all += RoundUp(bytes_of(buffer), size_t{kCacheLine});
  rank.scratch = Memory(all);
  if (rank.scratch.get() == nullptr) return {StatusCode::kOutOfMemory, "no memory for scratch"};
  std::byte* at = rank.scratch.get();
  for (size_t buffer = 2; buffer < rank.buffers.size(); ++buffer) {
    rank.buffers[buffer] = at;
    at += RoundUp(bytes_of(buffer), size_t{kCacheLine});
  }
  return Status::Ok();
}

void Host::Begin(int number) {
  Rank& rank = ranks_[static_cast<size_t>(number)];
  rank.links->Begin(plan_);
  Connections* connections = rank.links.get();
  if (run_.seed == 0 && !run_.delays.ports.empty()) {
    const Wiring* wiring = &wirings_.ranks[static_cast<size_t>(number)];
    rank.delayed = std::make_unique<DelayedLinks>(connections, delays_.get(), wiring, number);
    connections = rank.delayed.get();
  }
  rank.run = std::make_unique<Execution>(RunSite{&program_, number, sizes_, fold_, rank.buffers, connections, tile_});
}

bool Host::Advance(int number, bool* moved) {
  Rank& rank = ranks_[static_cast<size_t>(number)];
  if (!rank.links->Ready()) return false;
  int64_t budget = kBudgetBytes;
  *moved = rank.run->Advance(&budget);
  if (!rank.run->finished()) return false;
  rank.links->End();
  return true;
}

Status Host::Stuck() const {
  std::string text = "the program is stuck:";
  for (const Rank& rank : ranks_) {
    if (rank.run == nullptr) continue;
    for (const std::string& line : rank.run->Blocked(kMostLines)) text += "\n  " + line;
  }
  return {StatusCode::kStall, text};
}

StatusOr<std::vector<int64_t>> Host::RunInTurns() {
  std::vector<int64_t> times;
  std::mt19937_64 random(run_.seed);
  for (int repetition = 0; repetition < run_.repetitions; ++repetition) {
    const int64_t begin_ns = NowNs();
    std::vector<int> going;
    for (int rank = 0; rank < program_.ranks; ++rank) {
      Begin(rank);
      going.push_back(rank);
    }
    // The run is stuck after 64 turns per rank in which no rank has advanced.
    for (size_t idle = 0; !going.empty();) {
      const size_t place = random() % going.size();
      bool moved = false;
      const bool ended = Advance(going[place], &moved);
      if (ended) going.erase(going.begin() + static_cast<std::ptrdiff_t>(place));
      idle = moved || ended ? 0 : idle + 1;
      if (idle > 64 * ranks_.size()) return Stuck();
    }
    times.push_back(NowNs() - begin_ns);
  }
  return times;
}

StatusOr<std::vector<int64_t>> Host::RunOnThreads() {
  const auto count = static_cast<size_t>(run_.repetitions);
  std::vector<std::vector<int64_t>> begins(ranks_.size(), std::vector<int64_t>(count)), ends = begins;
  std::barrier together(program_.ranks);
  std::atomic<bool> stuck{false};
  const auto body = [&](int number) {
    const auto index = static_cast<size_t>(number);
    const data::FloatMode mode;
    for (size_t i = 0; i < count; ++i) {
      Begin(number);
      together.arrive_and_wait();
      begins[index][i] = NowNs();
      for (bool moved = false; !Advance(number, &moved) && !stuck.load(std::memory_order_relaxed);) {
        if (moved) continue;
        if (NowNs() - begins[index][i] > run_.patience_ns) stuck.store(true);
        std::this_thread::yield();
      }
      ends[index][i] = NowNs();
      together.arrive_and_wait();
      if (stuck.load()) return;
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < program_.ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
  if (stuck.load()) return Stuck();
  std::vector<int64_t> times(count);
  for (size_t i = 0; i < count; ++i) {
    int64_t first = begins[0][i], last = ends[0][i];
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      first = std::min(first, begins[rank][i]);
      last = std::max(last, ends[rank][i]);
    }
    times[i] = last - first;
  }
  return times;
}

}  // namespace

StatusOr<std::vector<int64_t>> RunLocally(const LocalRun& run) {
  StatusOr<std::unique_ptr<Host>> host = Host::Make(run);
  if (!host.ok()) return host.status();
  return run.seed != 0 ? (*host)->RunInTurns() : (*host)->RunOnThreads();
}

}  // namespace horocache::program
