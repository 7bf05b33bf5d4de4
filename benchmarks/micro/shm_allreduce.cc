// Times the shm backend alone, between forked processes: allreduce of float32 by each algorithm, in place (the sizes in
// its table of algorithms come from here) and out of place, beside a plain copy that all processes do at the same time.
// `make build` builds it:
//
//   build/dev/micro_shm_allreduce [ranks=2] [repeat=31] [tile KiB=256] [sizes in bytes...]
//
// Per size: median and best microseconds of the slowest rank, and bytes / best, of each kind.
// Every turn runs all of them, so that noise from neighbours hits all alike.

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/futex.h"
#include "data/backend.h"
#include "data/backends/shm/algorithms.h"

namespace {

using namespace horocache;

constexpr size_t kAreaBytes = 8 << 20;
constexpr int kMost = 64;
constexpr int kKinds = 5;  // copy; in place: one-shot, two-shot, direct; two-shot out of place

struct Shared {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> generation;
  double seconds[kMost];
};

void Barrier(Shared* shared, int ranks) {
  const uint32_t generation = shared->generation.load();
  if (shared->arrived.fetch_add(1) + 1 == static_cast<uint32_t>(ranks)) {
    shared->arrived.store(0);
    shared->generation.fetch_add(1);
    return;
  }
  for (int spin = 0; shared->generation.load() == generation; ++spin) {
    if (spin > 2000) {
      sched_yield();
    } else {
      CpuRelax();
    }
  }
}

struct Rank {
  int rank, ranks;
  Shared* shared;
  data::Backend* shm;
  std::byte* in;
  std::byte* out;
  std::byte* shared_in;  // in this rank's region

  void Allreduce(int64_t bytes, std::byte* input, std::byte* output, uint8_t algorithm, uint64_t sequence) const {
    data::Collective c;
    c.algorithm = algorithm;
    c.sequence = sequence;
    c.segments.push_back({input, output, bytes / 4});
    auto operation = shm->Start(std::move(c));
    for (int spin = 0; !operation->Test();) {
      if (operation->progressed()) {
        spin = 0;
      } else if (++spin > 2000) {
        sched_yield();
      } else {
        CpuRelax();
      }
    }
    if (!operation->status().ok()) std::abort();
  }

  // Measures the yard-stick, a copy of the input; the slowest rank counts.
  double Measure(int what, int64_t bytes, int inner) const {
    Barrier(shared, ranks);
    const int64_t begin = NowNs();
    for (int i = 0; i < inner; ++i) {
      if (what == 0) {
        std::memcpy(out, in, static_cast<size_t>(bytes));
      } else {
        const bool last = what == kKinds - 1;
        std::byte* const input = what == data::kDirect ? shared_in : in;
        const int algorithm = last ? data::kTwoshot : what;
        Allreduce(bytes, input, last ? out : input, static_cast<uint8_t>(algorithm), static_cast<uint64_t>(i));
      }
    }
    shared->seconds[rank] = static_cast<double>(NowNs() - begin) / 1e9 / inner;
    Barrier(shared, ranks);
    double slowest = 0;
    for (int r = 0; r < ranks; ++r) slowest = std::max(slowest, shared->seconds[r]);
    Barrier(shared, ranks);
    return slowest;
  }
};

struct Figures {
  double median, best;
};

Figures Summarize(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values[0]};
}

struct Settings {
  int ranks = 2;
  int repeat = 31;
  data::BackendOptions options;
  std::vector<int64_t> sizes = {4,         1 << 10,   4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10,
                                128 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
};

Settings Read(int argc, char** argv) {
  Settings settings;
  if (argc > 1) settings.ranks = std::atoi(argv[1]);
  if (argc > 2) settings.repeat = std::atoi(argv[2]);
  if (argc > 3) settings.options.tile_bytes = std::atoll(argv[3]) << 10;
  if (argc > 4) settings.sizes.clear();
  for (int i = 4; i < argc; ++i) settings.sizes.push_back(std::atoll(argv[i]));
  return settings;
}

// Forks; returns this process's rank. One core each, so that the ranks do not take turns on one.
int ForkRanks(int ranks) {
  int rank = 0;
  for (int r = 1; r < ranks && rank == 0; ++r) {
    if (fork() == 0) rank = r;
  }
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(rank % static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
  return rank;
}

std::byte* Buffer(int64_t bytes) {
  const size_t rounded = (static_cast<size_t>(bytes) / 4096 + 1) * 4096;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(4096, rounded));
  std::memset(memory, 0, rounded);
  return memory;
}

void MeasureSize(const Rank& self, int64_t bytes, int repeat) {
  const int inner = static_cast<int>(std::clamp<int64_t>((1 << 20) / bytes, 1, 2000));
  std::vector<double> times[kKinds];
  for (int i = 0; i < repeat + 1; ++i) {
    for (int what = 0; what < kKinds; ++what) {
      const double t = self.Measure(what, bytes, inner);
      if (i > 0) times[what].push_back(t);
    }
  }
  if (self.rank != 0) return;
  std::printf("%10lld", static_cast<long long>(bytes));
  for (const auto& list : times) {
    const Figures figures = Summarize(list);
    std::printf("  %9.2f %9.2f %6.2f", figures.median * 1e6, figures.best * 1e6,
                static_cast<double>(bytes) / figures.best / 1e9);
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = Read(argc, argv);
  const int ranks = settings.ranks;
  const size_t header = (sizeof(Shared) + 4095) / 4096 * 4096;
  void* memory = mmap(nullptr, header + kAreaBytes * static_cast<size_t>(ranks), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return 1;
  const int64_t most = *std::max_element(settings.sizes.begin(), settings.sizes.end());
  const size_t region_bytes = (static_cast<size_t>(most) / 4096 + 1) * 4096;
  void* regions = mmap(nullptr, region_bytes * static_cast<size_t>(ranks), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (regions == MAP_FAILED) return 1;
  data::SharedArea area;
  area.rank = ForkRanks(ranks);
  area.size = ranks;
  area.data_bytes = kAreaBytes;
  for (int r = 0; r < ranks; ++r) {
    area.data.push_back(static_cast<std::byte*>(memory) + header + kAreaBytes * static_cast<size_t>(r));
    area.regions.emplace_back(static_cast<std::byte*>(regions) + region_bytes * static_cast<size_t>(r), region_bytes);
  }
  auto backends = data::MakeBackends(area, settings.options);
  if (!backends.ok()) return std::fprintf(stderr, "%s\n", backends.status().message().c_str()), 1;
  const Rank self{area.rank,
                  ranks,
                  static_cast<Shared*>(memory),
                  (*backends)[0].get(),
                  Buffer(most),
                  Buffer(most),
                  area.regions[static_cast<size_t>(area.rank)].data()};
  if (area.rank == 0) {
    std::printf("%10s  %26s  %26s  %26s  %26s  %26s\n", "bytes", "copy: us, best, GB/s", "one-shot", "two-shot",
                "direct", "two-shot, out of place");
  }
  for (const int64_t bytes : settings.sizes) MeasureSize(self, bytes, settings.repeat);
  if (area.rank != 0) return 0;
  while (wait(nullptr) > 0) {
  }
  return 0;
}
