#include "runtime/runtime.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "control/selector.h"
#include "control/signature.h"
#include "data/kernels/fold.h"
#include "wire/codec.h"

namespace horocache::runtime {
namespace {

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

LogLevel ParseLevel(const std::string& name) {
  static constexpr std::array<std::string_view, 6> kNames = {"trace", "debug", "info", "warning", "error", "fatal"};
  return static_cast<LogLevel>(std::ranges::find(kNames, name) - kNames.begin());
}

LoopConfig LoopFor(const RuntimeConfig& config) {
  const Knobs& knobs = config.knobs;
  LoopConfig out;
  // With more ranks than cores, a rank that spins keeps the core from the rank it waits for.
  out.spin_ns = config.identity.local_size > UsableCores() ? 0 : Nanoseconds(knobs.spin_us, kNsPerUs);
  out.yield_ns = Nanoseconds(knobs.yield_us, kNsPerUs);
  return out;
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

Runtime::Runtime(RuntimeConfig config, ProcessSets sets)
    : config_(std::move(config)),
      sets_(std::move(sets)),
      logger_(ParseLevel(config_.knobs.log_level), config_.identity.rank, !config_.knobs.log_hide_time),
      metrics_(config_.identity.size) {}

Runtime::~Runtime() { Stop(); }

StatusOr<std::unique_ptr<Runtime>> Runtime::Start(RuntimeConfig config) {
  HC_RETURN_IF_ERROR(CheckKnobs(config.knobs));  // before the other ranks are met
  StatusOr<ProcessSets> sets = ProcessSets::Make(config.identity.size, config.process_sets);
  if (!sets.ok()) return sets.status();
  std::unique_ptr<Runtime> runtime(new Runtime(std::move(config), std::move(*sets)));
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

net::BootstrapConfig Runtime::BootstrapFor() const {
  net::BootstrapConfig bootstrap;
  bootstrap.identity = config_.identity;
  bootstrap.handshake = {config_.version, wire::kProtocolVersion, config_.epoch, ""};
  bootstrap.layout = LayoutFor(config_.knobs, config_.identity.local_size);
  const std::string& base = config_.knobs.rendezvous_dir;
  if (!base.empty()) bootstrap.directory = net::OwnDirectory(base);  // what the user gave is not ours to remove
  bootstrap.timeout_ns = Nanoseconds(config_.knobs.start_timeout, kNsPerS);
  return bootstrap;
}

Status Runtime::Assemble() {
  if (config_.arena != nullptr) {
    peers_.arena = config_.arena;
    peers_.arena->state(config_.identity.local_rank).store(net::RankState::kRunning);
    return Status::Ok();
  }
  const StatusOr<control::Selector> selector = SelectorFor(config_.knobs, config_.identity.size);
  if (!selector.ok()) return selector.status();
  net::BootstrapConfig bootstrap = BootstrapFor();
  bootstrap.handshake.agree =
      config_.knobs.AgreeText() + "selector table=" + std::to_string(selector->Hash()) + "\n" + sets_.AgreeText();
  StatusOr<net::Peers> peers = net::Bootstrap(bootstrap);
  if (!peers.ok()) return peers.status();
  peers_ = std::move(*peers);
  return Status::Ok();
}

// Sets meet in ascending order on every rank: the lowest that is not complete yet has none of its ranks waiting in a
// higher one, so nobody waits in a circle.
StatusOr<std::shared_ptr<net::Arena>> Runtime::MeetIn(uint32_t number) {
  if (number == 0) return peers_.arena;
  if (config_.arena != nullptr) return config_.set_arenas.at(number - 1);
  const std::vector<int>& ranks = sets_.ranks(number);
  const int rank = sets_.RankIn(number, config_.identity.rank);
  const auto size = static_cast<int>(ranks.size());
  net::BootstrapConfig bootstrap = BootstrapFor();
  bootstrap.identity = {
      rank, size, rank, size, 0, 1, config_.identity.job + ":set" + std::to_string(number), config_.identity.source};
  StatusOr<net::Peers> peers = net::Bootstrap(bootstrap);
  if (peers.ok()) return peers->arena;
  return Status(peers.status().code(), "the ranks of " + sets_.Describe(number) +
                                           " could not meet; numbered within the set: " + peers.status().message());
}

StatusOr<SetSite> Runtime::SiteOf(uint32_t number) {
  StatusOr<std::shared_ptr<net::Arena>> arena = MeetIn(number);
  if (!arena.ok()) return arena.status();
  SetSite site;
  site.process_set = number;
  site.epoch = config_.epoch;
  site.ranks = sets_.ranks(number);
  site.rank = sets_.RankIn(number, config_.identity.rank);
  site.arena = std::move(*arena);
  for (const int rank : site.ranks) site.doorbells.push_back(peers_.arena->doorbell(rank));
  return site;
}

Status Runtime::MakeLoop() {
  CoordinatorLoop::Parts parts;
  for (uint32_t number = 0; static_cast<int>(number) < sets_.size(); ++number) {
    if (sets_.RankIn(number, config_.identity.rank) < 0) continue;
    StatusOr<SetSite> site = SiteOf(number);
    if (!site.ok()) return site.status();
    StatusOr<SetParts> set = MakeSet(config_.knobs, std::move(*site));
    if (!set.ok()) return set.status();
    parts.sets.push_back(std::move(*set));
  }
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
  loop_->Lose(rank, {StatusCode::kPeerLost, "rank " + std::to_string(rank) + " (pid " + std::to_string(pid) +
                                                " on this host) " + how +
                                                "; the job cannot go on. See that rank's output for the cause."});
}

Status Runtime::Check(const Operation& operation) const {
  const wire::Signature& signature = operation.request.signature;
  if (!alive_) return {StatusCode::kShutDown, "horocache has been shut down on this rank; call init() again."};
  const uint32_t set = operation.process_set;
  if (set >= static_cast<uint32_t>(sets_.size())) {
    return {StatusCode::kInvalidArgument, "there is no process set " + std::to_string(static_cast<int32_t>(set)) +
                                              "; init() registered " + std::to_string(sets_.size() - 1) +
                                              " besides the global one"};
  }
  if (sets_.RankIn(set, config_.identity.rank) < 0) {
    return {StatusCode::kInvalidArgument, std::string(wire::OpName(signature.op)) + ": rank " +
                                              std::to_string(config_.identity.rank) + " is not in " +
                                              sets_.Describe(set) + ", so it cannot take part in operations on it"};
  }
  const auto too_long = [](const std::string& name) { return name.size() > wire::kMaxNameBytes; };
  const bool long_member =
      std::ranges::any_of(signature.tensors, [&](const wire::TensorMeta& tensor) { return too_long(tensor.name); });
  if (too_long(signature.name) || long_member) {
    return {StatusCode::kInvalidArgument,
            "a tensor's name has more than " + std::to_string(wire::kMaxNameBytes) + " bytes"};
  }
  const bool has_result = signature.op != wire::Op::kReduce || signature.root == config_.identity.rank;
  if (!control::Fuses(signature.op) || !has_result) return Status::Ok();
  const auto lost = [](const TensorArgument& tensor) { return tensor.output == nullptr && tensor.count > 0; };
  if (std::ranges::any_of(operation.tensors, lost)) {
    return {StatusCode::kInvalidArgument, std::string(wire::OpName(signature.op)) +
                                              " needs a tensor of the caller's for its result; the core allocates only "
                                              "results whose size differs by rank"};
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
  loop_->Leave(NowNs() + Nanoseconds(config_.knobs.shutdown_timeout, kNsPerS));
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
