#include "runtime/runtime.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "control/agreement.h"
#include "control/controller.h"
#include "control/selector.h"
#include "data/kernels/fold.h"
#include "net/shm_channel.h"
#include "wire/codec.h"

namespace horocache::runtime {
namespace {

int64_t Seconds(double seconds) { return static_cast<int64_t>(seconds * static_cast<double>(kNsPerS)); }
int64_t Microseconds(double microseconds) { return static_cast<int64_t>(microseconds * static_cast<double>(kNsPerUs)); }

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

LogLevel ParseLevel(const std::string& name) {
  static constexpr std::array<std::string_view, 6> kNames = {"trace", "debug", "info", "warning", "error", "fatal"};
  return static_cast<LogLevel>(std::ranges::find(kNames, name) - kNames.begin());
}

control::ControllerConfig ControllerFor(const RuntimeConfig& config, const control::Selector& selector) {
  const Knobs& knobs = config.knobs;
  control::ControllerConfig out;
  out.rank = config.identity.rank;
  out.size = config.identity.size;
  out.epoch = config.epoch;
  out.cache_capacity = knobs.cache_capacity;
  out.cache_capacity_fixed = !knobs.IsDefault("cache_capacity");
  out.fusion_threshold_bytes = knobs.fusion_threshold;
  out.disable_group_fusion = knobs.disable_group_fusion;
  out.tick = knobs.cycle_mode == "tick";
  out.cycle_time_ns = Microseconds(knobs.cycle_time * 1000);
  out.stall_check = !knobs.stall_check_disable;
  out.stall_warn_ns = Seconds(knobs.stall_check_time_seconds);
  out.stall_fail_ns = Seconds(knobs.stall_shutdown_time_seconds);
  out.selector = selector;
  return out;
}

LoopConfig LoopFor(const RuntimeConfig& config) {
  const Knobs& knobs = config.knobs;
  LoopConfig out;
  out.rank = config.identity.rank;
  out.size = config.identity.size;
  // With more ranks than cores, a rank that spins keeps the core from the rank it waits for.
  out.spin_ns = config.identity.local_size > UsableCores() ? 0 : Microseconds(knobs.spin_us);
  out.yield_ns = Microseconds(knobs.yield_us);
  out.stall_check = !knobs.stall_check_disable;
  out.stall_warn_ns = Seconds(knobs.stall_check_time_seconds);
  out.stall_fail_ns = Seconds(knobs.stall_shutdown_time_seconds);
  return out;
}

data::BackendOptions BackendOptionsFor(const Knobs& knobs) {
  data::BackendOptions options;
  options.tile_bytes = knobs.shm_tile;
  options.oneshot_max_bytes = knobs.oneshot_max;
  options.kernels = knobs.kernels;
  options.fakedevice_delay_ns = Microseconds(knobs.fakedevice_delay_us);
  return options;
}

StatusOr<control::Selector> SelectorFor(const Knobs& knobs, int ranks) {
  return control::Selector::Parse(data::TraitsOf(ranks, BackendOptionsFor(knobs)), ranks, knobs.select);
}

}  // namespace

Status CheckKnobs(const Knobs& knobs) {
  HC_RETURN_IF_ERROR(FaultInjector::Parse(knobs.fault, 0).status());
  HC_RETURN_IF_ERROR(data::FindKernels(knobs.kernels).status());
  return SelectorFor(knobs, 1).status();  // a job of one rank has every backend
}

net::ArenaLayout LayoutFor(const Knobs& knobs, int ranks) {
  net::ArenaLayout layout;
  layout.ranks = ranks;
  layout.data_bytes = knobs.shm_bytes;
  return layout;
}

Runtime::Runtime(RuntimeConfig config, control::Selector selector)
    : config_(std::move(config)),
      selector_(std::move(selector)),
      logger_(ParseLevel(config_.knobs.log_level), config_.identity.rank, !config_.knobs.log_hide_time),
      metrics_(config_.identity.size) {}

Runtime::~Runtime() { Stop(); }

StatusOr<std::unique_ptr<Runtime>> Runtime::Start(RuntimeConfig config) {
  StatusOr<control::Selector> selector = SelectorFor(config.knobs, config.identity.size);
  if (!selector.ok()) return selector.status();
  HC_RETURN_IF_ERROR(CheckKnobs(config.knobs));  // before the other ranks are met
  std::unique_ptr<Runtime> runtime(new Runtime(std::move(config), std::move(*selector)));
  HC_RETURN_IF_ERROR(runtime->Assemble());
  try {
    HC_RETURN_IF_ERROR(runtime->MakeLoop());
  } catch (const std::system_error& error) {
    return Status(StatusCode::kStartup, std::string("cannot start a thread: ") + error.what() +
                                            "; raise the limit of processes (ulimit -u, or the container's)");
  }
  runtime->alive_ = true;
  return runtime;
}

Status Runtime::Assemble() {
  if (config_.arena != nullptr) {
    peers_.arena = config_.arena;
    peers_.arena->state(config_.identity.local_rank).store(net::RankState::kRunning);
    return Status::Ok();
  }
  net::BootstrapConfig bootstrap;
  bootstrap.identity = config_.identity;
  bootstrap.handshake = {config_.version, wire::kProtocolVersion, config_.epoch,
                         config_.knobs.AgreeText() + "selector table=" + std::to_string(selector_.Hash()) + "\n"};
  bootstrap.layout = LayoutFor(config_.knobs, config_.identity.local_size);
  const std::string& base = config_.knobs.rendezvous_dir;
  if (!base.empty()) bootstrap.directory = net::OwnDirectory(base);  // what the user gave is not ours to remove
  bootstrap.timeout_ns = Seconds(config_.knobs.start_timeout);
  StatusOr<net::Peers> peers = net::Bootstrap(bootstrap);
  if (!peers.ok()) return peers.status();
  peers_ = std::move(*peers);
  return Status::Ok();
}

StatusOr<std::vector<std::unique_ptr<data::Backend>>> Runtime::MakeBackends() {
  data::SharedArea area;
  area.rank = config_.identity.local_rank;
  area.size = config_.identity.local_size;
  for (int rank = 0; rank < area.size; ++rank) area.data.push_back(peers_.arena->data(rank).data());
  area.data_bytes = peers_.arena->data(0).size();
  area.ring = [arena = peers_.arena](int rank) { arena->doorbell(rank).RingForData(); };
  return data::MakeBackends(area, BackendOptionsFor(config_.knobs));
}

Status Runtime::MakeLoop() {
  auto backends = MakeBackends();
  if (!backends.ok()) return backends.status();

  CoordinatorLoop::Parts parts;
  parts.controller = std::make_unique<control::Controller>(ControllerFor(config_, selector_));
  control::AgreementConfig agreement;
  agreement.strategy = config_.knobs.agreement;
  agreement.radix = static_cast<int>(config_.knobs.tree_radix);
  parts.agreement = control::MakeAgreement(agreement);
  parts.channel = net::MakeShmChannel(peers_.arena, config_.identity.local_rank);
  parts.backends = std::move(*backends);
  auto faults = FaultInjector::Parse(config_.knobs.fault, config_.identity.rank);
  if (!faults.ok()) return faults.status();
  parts.faults = std::move(*faults);
  parts.doorbell = peers_.arena->doorbell(config_.identity.local_rank);
  loop_ = std::make_unique<CoordinatorLoop>(LoopFor(config_), std::move(parts), &table_, &metrics_, &logger_);
  if (config_.arena == nullptr && config_.identity.size > 1) {
    liveness_ = std::make_unique<net::Liveness>(&peers_, config_.identity.local_rank,
                                                [this](int rank, const std::string& how) { OnLost(rank, how); });
  }
  return Status::Ok();
}

void Runtime::OnLost(int rank, const std::string& how) {
  const int pid = peers_.pids[static_cast<size_t>(rank)];
  loop_->Lose({StatusCode::kPeerLost, "rank " + std::to_string(rank) + " (pid " + std::to_string(pid) +
                                          " on this host) " + how +
                                          "; the job cannot go on. See that rank's output for the cause."});
}

Status Runtime::Check(const Operation& operation) const {
  const wire::Signature& signature = operation.request.signature;
  if (!alive_) return {StatusCode::kShutDown, "horocache has been shut down on this rank; call init() again."};
  const auto too_long = [](const std::string& name) { return name.size() > wire::kMaxNameBytes; };
  const bool long_member =
      std::ranges::any_of(signature.tensors, [&](const wire::TensorMeta& tensor) { return too_long(tensor.name); });
  if (too_long(signature.name) || long_member) {
    return {StatusCode::kInvalidArgument,
            "a tensor's name has more than " + std::to_string(wire::kMaxNameBytes) + " bytes"};
  }
  return Status::Ok();
}

Status Runtime::Submit(Operation* operation, bool wait_follows) {
  bool first = false;
  Status status = Check(*operation);
  if (status.ok()) status = table_.Add(operation, NowNs(), &first);
  if (!status.ok()) {
    table_.Recycle(operation);
    return status;
  }
  if (const Status fault = loop_->NoteSubmission(first && !wait_follows); !fault.ok()) loop_->Abort(fault.message());
  return Status::Ok();
}

void Runtime::Stop() {
  if (!alive_.exchange(false)) return;
  loop_->Leave(NowNs() + Seconds(config_.knobs.shutdown_timeout));
  peers_.arena->state(config_.identity.local_rank).store(net::RankState::kLeft);
  liveness_.reset();
  loop_->Stop();
}

void Runtime::ForkedChild() {
  if (liveness_ != nullptr) liveness_->CloseInChild();
  peers_.CloseInChild();
  alive_ = false;
}

}  // namespace horocache::runtime
