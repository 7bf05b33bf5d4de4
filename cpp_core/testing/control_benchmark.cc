#include "testing/control_benchmark.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "control/agreement.h"
#include "control/controller.h"
#include "testing/inproc_channel.h"
#include "testing/message_bits.h"
#include "testing/random_scenario.h"

namespace horocache::testing {

namespace {

int64_t CpuNs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A tensor name like those of a model's gradients.
std::string NameOf(int tensor) {
  return "DistributedOptimizer.gradient.layer" + std::to_string(tensor / 3) + ".block.conv" +
         std::to_string(tensor % 3) + ".weight";
}

class Job {
 public:
  explicit Job(const ControlBenchmark& benchmark) : benchmark_(benchmark), network_({.size = benchmark.ranks}) {
    for (int tensor = 0; tensor < benchmark.tensors; ++tensor) {
      requests_.push_back({.signature = MakeSignature(wire::Op::kAllreduce, NameOf(tensor), {{64, 64, 3, 3}})});
    }
  }

  Status Start();
  // Submits all requests on every rank, and steps the ranks until all requests are planned.
  Status Step();

  struct StepCost {
    double coordinator_us = 0, worker_us = 0;
    uint64_t messages = 0, bytes = 0, rounds = 0;
  };
  const StepCost& last() const { return last_; }

 private:
  struct Rank {
    std::unique_ptr<control::Controller> controller;
    std::unique_ptr<control::Agreement> agreement;
    size_t planned = 0;
    int64_t cpu_ns = 0;
    bool queued = false;
  };

  void Queue(int rank) {
    if (!std::exchange(ranks_[static_cast<size_t>(rank)].queued, true)) queue_.push_back(rank);
  }
  Status StepRank(int rank);

  const ControlBenchmark benchmark_;
  InprocNetwork network_;
  std::vector<wire::Request> requests_;
  std::vector<Rank> ranks_;
  std::deque<int> queue_;
  control::Plan plan_;
  int64_t now_ns_ = 0;
  int64_t clock_ns_ = 0;  // cost of one reading of the clock
  StepCost last_;
};

Status Job::Start() {
  control::BackendTraits backend{.name = "none", .ops = ~0u, .device_classes = ~0u};
  auto selector = control::Selector::Parse({backend}, {benchmark_.ranks}, "");
  if (!selector.ok()) return selector.status();
  control::AgreementConfig agreement{.strategy = benchmark_.strategy, .radix = benchmark_.radix};
  for (int rank = 0; rank < benchmark_.ranks; ++rank) {
    agreement.host_of.push_back(rank / std::max(benchmark_.ranks_per_host, 1));
  }
  for (int rank = 0; rank < benchmark_.ranks; ++rank) {
    control::ControllerConfig config{.rank = rank, .size = benchmark_.ranks};
    config.cache_capacity = benchmark_.cache ? 1024 : 0;
    config.stall_check = false;
    config.selector = *selector;
    Rank state;
    state.controller = std::make_unique<control::Controller>(config);
    state.agreement = benchmark_.strategy == kMessageBits ? std::make_unique<MessageBitsAgreement>()
                                                          : control::MakeAgreement(agreement);
    if (state.agreement == nullptr)
      return {StatusCode::kInvalidArgument, "no strategy \"" + benchmark_.strategy + "\""};
    ranks_.push_back(std::move(state));
  }
  const int64_t begin = CpuNs();
  constexpr int kReads = 1000;
  for (int i = 0; i < kReads; ++i) CpuNs();
  clock_ns_ = (CpuNs() - begin) / kReads;
  return Status::Ok();
}

Status Job::Step() {
  const uint64_t messages = network_.messages(), bytes = network_.bytes(), rounds = ranks_[0].controller->round();
  for (int rank = 0; rank < benchmark_.ranks; ++rank) {
    Rank& state = ranks_[static_cast<size_t>(rank)];
    state.planned = 0;
    state.cpu_ns = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      HC_RETURN_IF_ERROR(state.controller->Submit(i + 1, requests_[i], now_ns_));
    }
  }
  // Rank 0 is stepped last, so that it does not bear the cost of ringing the others.
  for (int rank = benchmark_.ranks - 1; rank >= 0; --rank) Queue(rank);
  while (!queue_.empty()) {
    const int rank = queue_.front();
    queue_.pop_front();
    ranks_[static_cast<size_t>(rank)].queued = false;
    HC_RETURN_IF_ERROR(StepRank(rank));
    for (int rung = -1; network_.NextRung(&rung);) Queue(rung);
  }
  std::vector<double> workers;
  for (int rank = 0; rank < benchmark_.ranks; ++rank) {
    const Rank& state = ranks_[static_cast<size_t>(rank)];
    if (state.planned != requests_.size()) {
      return {StatusCode::kInternal, benchmark_.strategy + ": rank " + std::to_string(rank) + " planned " +
                                         std::to_string(state.planned) + " of " + std::to_string(requests_.size()) +
                                         " tensors"};
    }
    if (rank > 0) workers.push_back(static_cast<double>(state.cpu_ns) / 1e3);
  }
  last_ = {.coordinator_us = static_cast<double>(ranks_[0].cpu_ns) / 1e3,
           .worker_us = Median(std::move(workers)),
           .messages = network_.messages() - messages,
           .bytes = network_.bytes() - bytes,
           .rounds = ranks_[0].controller->round() - rounds};
  now_ns_ += 100'000'000;
  return Status::Ok();
}

Status Job::StepRank(int rank) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  const int64_t begin = CpuNs();
  // A rank waits until all requests of the step are planned, like an optimizer that has submitted all gradients.
  const bool waits = state.planned != requests_.size();
  state.controller->SetWaiting(waits, waits);
  StatusOr<bool> moved = state.agreement->Step(*state.controller, network_.channel(rank), now_ns_);
  while (state.controller->NextPlan(&plan_)) state.planned += plan_.items.size();
  state.cpu_ns += std::max<int64_t>(0, CpuNs() - begin - clock_ns_);
  if (!moved.ok()) return moved.status();
  control::Failure failure;
  if (state.controller->NextFailure(&failure)) return failure.status;
  if (*moved) Queue(rank);
  return Status::Ok();
}

}  // namespace

StatusOr<ControlCost> Measure(const ControlBenchmark& benchmark) {
  if (benchmark.ranks < 2 || benchmark.tensors < 1 || benchmark.steps < 1) {
    return Status(StatusCode::kInvalidArgument, "a control benchmark needs at least 2 ranks, 1 tensor and 1 step");
  }
  const auto begin = std::chrono::steady_clock::now();
  Job job(benchmark);
  HC_RETURN_IF_ERROR(job.Start());
  HC_RETURN_IF_ERROR(job.Step());
  ControlCost cost{.first_step_us = job.last().coordinator_us};
  std::vector<double> coordinator, worker, messages, bytes, rounds;
  for (int step = 0; step < benchmark.steps; ++step) {
    HC_RETURN_IF_ERROR(job.Step());
    coordinator.push_back(job.last().coordinator_us);
    worker.push_back(job.last().worker_us);
    messages.push_back(static_cast<double>(job.last().messages));
    bytes.push_back(static_cast<double>(job.last().bytes));
    rounds.push_back(static_cast<double>(job.last().rounds));
  }
  cost.coordinator_us = Median(std::move(coordinator));
  cost.worker_us = Median(std::move(worker));
  cost.messages = Median(std::move(messages));
  cost.bytes = Median(std::move(bytes));
  cost.rounds = Median(std::move(rounds));
  cost.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return cost;
}

}  // namespace horocache::testing
