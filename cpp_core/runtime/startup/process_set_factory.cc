#include "runtime/startup/process_set_factory.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/memory.h"
#include "control/agreement.h"
#include "control/controller.h"
#include "data/backend.h"
#include "data/backends/backends.h"
#include "data/backends/user/calls.h"
#include "data/kernels/fold.h"
#include "net/hosts/control_channel.h"
#include "net/shm/control_channel.h"
#include "program/backend.h"

namespace horocache::runtime {
namespace {

control::ControllerConfig ControllerFor(const Knobs& knobs, const SetMembership& membership,
                                        control::Selector selector) {
  control::ControllerConfig out;
  out.rank = membership.rank;
  out.size = static_cast<int>(membership.ranks.size());
  out.process_set = membership.process_set;
  out.names = control::RankNames(membership.process_set, membership.ranks);
  out.epoch = membership.epoch;
  out.cache_capacity = knobs.cache_capacity;
  out.cache_capacity_fixed = !knobs.IsDefault("cache_capacity");
  out.fusion_threshold_bytes = knobs.fusion_threshold;
  out.disable_group_fusion = knobs.disable_group_fusion;
  out.inline_max_bytes = knobs.inline_max;
  out.tick = knobs.cycle_mode == "tick";
  out.cycle_time_ns = Nanoseconds(knobs.cycle_time, kNsPerMs);
  out.stall_check = !knobs.stall_check_disable;
  out.stall_warn_ns = Nanoseconds(knobs.stall_check_time_seconds, kNsPerS);
  out.stall_fail_ns = Nanoseconds(knobs.stall_shutdown_time_seconds, kNsPerS);
  out.stall_fail_computing = !knobs.IsDefault("stall_shutdown_time_seconds");
  out.selector = std::move(selector);
  return out;
}

SetConfig ConfigFor(const Knobs& knobs, const SetMembership& membership) {
  SetConfig out;
  out.process_set = membership.process_set;
  out.ranks = membership.ranks;
  out.rank = membership.rank;
  out.stall_check = !knobs.stall_check_disable;
  out.stall_warn_ns = Nanoseconds(knobs.stall_check_time_seconds, kNsPerS);
  out.stall_fail_ns = Nanoseconds(knobs.stall_shutdown_time_seconds, kNsPerS);
  out.small_lane_bytes = knobs.small_lane_bytes;
  return out;
}

data::BackendOptions BackendOptionsFor(const Knobs& knobs) {
  data::BackendOptions options;
  options.tile_bytes = knobs.shm_tile;
  options.oneshot_max_bytes = knobs.oneshot_max;
  options.kernels = knobs.kernels;
  options.deterministic = knobs.deterministic;
  options.mpi_max_count = knobs.mpi_max_count;
  return options;
}

// A backend of the program gets one of this many equal parts of the shared memory, to count rows.
constexpr size_t kPartsForUser = 16;
// So does each small lane.
constexpr size_t kPartsForSmall = 16;

// Takes the last part of an area, of several equal ones, away from it.
data::SharedArea TakeEnd(data::SharedArea* area, size_t parts) {
  const size_t lines = area->data_bytes / kCacheLine;
  const size_t rest = (lines - lines / parts) * kCacheLine;
  const data::SharedArea end = data::PartOf(*area, rest, lines * kCacheLine - rest);
  *area = data::PartOf(*area, 0, rest);
  return end;
}

// The shared data areas of the set's ranks on this host.
data::SharedArea LocalArea(const SetMembership& membership) {
  data::SharedArea area;
  area.rank = membership.local_rank;
  area.size = static_cast<int>(membership.doorbells.size());
  for (int rank = 0; rank < area.size; ++rank) area.data.push_back(membership.arena->data(rank).data());
  area.data_bytes = membership.arena->data(0).size();
  area.regions = membership.regions;
  area.ring = [doorbells = membership.doorbells](int rank) mutable {
    doorbells[static_cast<size_t>(rank)].RingForData();
  };
  return area;
}

// The data areas of all ranks of the set: none if the set is on several hosts, which share no memory.
data::SharedArea AreaOf(const SetMembership& membership, const data::SharedArea& local) {
  if (membership.one_host()) return local;
  data::SharedArea area;
  area.rank = membership.rank;
  area.size = static_cast<int>(membership.ranks.size());
  return area;
}

// `local`: the shared memory of this host.
data::MpiResources MpiFor(const SetMembership& membership, SetComms comms, data::SharedArea local) {
  data::MpiResources resources;
  resources.all = std::move(comms.all);
  resources.host_of = membership.host_of;
  if (resources.all.empty() || membership.one_host()) return resources;
  resources.leaders = std::move(comms.leaders);
  resources.local = std::move(local);
  resources.ranks = membership.ranks;
  resources.process_set = membership.process_set;
  return resources;
}

// Bitvectors stay on their host, so between hosts the leaders speak for their ranks.
control::AgreementConfig AgreementFor(const Knobs& knobs, const SetMembership& membership) {
  control::AgreementConfig agreement;
  agreement.strategy = knobs.agreement == "bits" && !membership.one_host() ? "leaders" : knobs.agreement;
  agreement.radix = static_cast<int>(knobs.tree_radix);
  if (!membership.one_host()) agreement.host_of = membership.host_of;
  return agreement;
}

std::unique_ptr<net::RuntimeChannel> ChannelFor(SetMembership* membership) {
  const bool one_host = membership->one_host();
  auto local =
      net::MakeShmChannel(std::move(membership->arena), membership->local_rank, std::move(membership->doorbells));
  if (one_host) return local;
  return net::MakeHostsChannel({membership->rank, membership->host_of, membership->ranks, membership->host_monitor},
                               std::move(local), std::move(membership->link));
}

// Makes the backend of compiled programs. A fourth of its memory goes to its built-in backend, which runs operations
// without a suitable program.
StatusOr<std::unique_ptr<data::Backend>> MakeProgramBackendFor(SetMembership* membership, const data::SharedArea& local,
                                                               const data::BackendOptions& options,
                                                               program::ProgramResources resources) {
  const size_t built_in_bytes = local.data_bytes / 4 / kCacheLine * kCacheLine;
  const data::SharedArea share = data::PartOf(local, 0, built_in_bytes);
  auto built_in = data::MakeBackends(AreaOf(*membership, share), options,
                                     MpiFor(*membership, std::move(membership->program_mpi), share));
  if (!built_in.ok()) return built_in.status();
  resources.built_in = std::move(built_in->front());
  resources.links = data::PartOf(local, built_in_bytes, local.data_bytes - built_in_bytes);
  resources.comm = std::move(membership->program_links);
  if (!membership->one_host()) resources.host_of = membership->host_of;
  return program::MakeProgramBackend(std::move(resources));
}

std::function<void(const std::string&)> WarningsOf(const Logger* logger) {
  return [logger](const std::string& text) { logger->Warning(text); };
}

data::NcclOptions NcclFor(const Knobs& knobs, const SetMembership& membership,
                          std::shared_ptr<const cuda::Nccl> library, const Logger* logger) {
  data::NcclOptions options;
  options.library = std::move(library);
  options.required = knobs.nccl == "on";
  options.timeout_ns = Nanoseconds(knobs.start_timeout, kNsPerS);
  options.window_bytes = knobs.nccl_window_bytes;
  options.name = "horocache set " + std::to_string(membership.process_set);
  options.warn = WarningsOf(logger);
  return options;
}

data::HostResources HostForNccl(SetMembership* membership, data::SharedArea share) {
  data::HostResources out;
  if (!membership->nccl_mpi.all.empty()) {
    out.levels.leaders = std::move(membership->nccl_leaders);
    out.levels.local = TakeEnd(&share, 2);
    out.levels.host_of = membership->host_of;
    out.levels.ranks = membership->ranks;
    out.levels.process_set = membership->process_set;
  }
  out.area = AreaOf(*membership, share);
  out.mpi = MpiFor(*membership, std::move(membership->nccl_mpi), share);
  return out;
}

// Each backend of the program counts rows by a backend of its own, in one of `areas`.
Status AddUserBackends(const UserBackends& users, const std::vector<data::SharedArea>& areas,
                       const data::BackendOptions& options, SetMembership* membership, SetParts* parts) {
  const net::Doorbell& own = membership->doorbells[static_cast<size_t>(membership->local_rank)];
  for (size_t i = 0; i < users.size(); ++i) {
    auto calls = std::make_shared<data::UserCalls>([doorbell = own]() mutable { doorbell.Ring(); });
    SetComms comms;
    if (i < membership->user_mpi.size()) comms = std::move(membership->user_mpi[i]);
    auto host =
        data::MakeBackends(AreaOf(*membership, areas[i]), options, MpiFor(*membership, std::move(comms), areas[i]));
    if (!host.ok()) return host.status();
    parts->backends.push_back(data::MakeUserBackend(users[i], std::move(host->front()), calls, membership->rank,
                                                    membership->size().ranks, parts->kernels));
    parts->user_calls.emplace(users[i].name, std::move(calls));
  }
  return Status::Ok();
}

// Each small lane has the backends of the host, in one of `areas`.
Status AddSmallLanes(const std::vector<data::SharedArea>& areas, const data::BackendOptions& options,
                     SetMembership* membership, SetParts* parts) {
  for (size_t i = 0; i < areas.size(); ++i) {
    SetComms comms;
    if (i < membership->small_mpi.size()) comms = std::move(membership->small_mpi[i]);
    auto backends =
        data::MakeBackends(AreaOf(*membership, areas[i]), options, MpiFor(*membership, std::move(comms), areas[i]));
    if (!backends.ok()) return backends.status();
    for (auto& backend : *backends) parts->small_backends.push_back(std::move(backend));
  }
  return Status::Ok();
}

// The backends must outlive the function.
control::Selector::Supports SupportsOf(const std::vector<std::unique_ptr<data::Backend>>& backends) {
  std::vector<const data::Backend*> known;
  for (const auto& backend : backends) known.push_back(backend.get());
  return [known](const wire::Signature& signature, uint8_t backend, uint8_t algorithm) {
    data::Collective collective;
    collective.op = signature.op;
    collective.reduce_op = signature.reduce_op;
    collective.device_class = signature.device_class;
    collective.prescale = signature.prescale;
    collective.postscale = signature.postscale;
    collective.root = signature.root;
    collective.algorithm = algorithm;
    if (!signature.tensors.empty()) collective.dtype = signature.tensors.front().dtype;
    return known[backend]->Supports(collective).ok();
  };
}

}  // namespace

int64_t SmallLanesOf(const Knobs& knobs, size_t ranks) {
  return ranks > 1 && knobs.small_lane_bytes > 0 ? knobs.small_lanes : 0;
}

control::SetSize SetMembership::size() const {
  const int hosts = host_of.empty() ? 1 : *std::ranges::max_element(host_of) + 1;
  return {static_cast<int>(ranks.size()), hosts};
}

StatusOr<control::Selector> SelectorFor(const Knobs& knobs, control::SetSize size, data::Transports transports,
                                        const program::Library* programs, const UserBackends* users,
                                        const std::string& tuning) {
  std::string rules = knobs.select;  // the first rule that applies wins
  if (!transports.shm && transports.mpi) {
    if (knobs.hierarchical_allreduce && transports.nccl) rules += ";allreduce,cuda=nccl/twolevel";
    if (knobs.hierarchical_allreduce) rules += ";allreduce=mpi/twolevel";
    if (knobs.hierarchical_allgather) rules += ";allgather=mpi/twolevel";
    if (knobs.hierarchical_broadcast) rules += ";broadcast=mpi/twolevel";
  }
  std::vector<control::BackendTraits> traits = data::BackendTraitsFor(size.ranks, transports);
  if (programs != nullptr && (transports.shm || transports.mpi)) {
    traits.push_back(program::ProgramTraits(*programs));
    rules += ";" + programs->rules;
  }
  if (users != nullptr) traits.insert(traits.end(), users->begin(), users->end());
  return control::Selector::Parse(
      std::move(traits), size, rules, tuning,
      " A job has the backends that fit it: shm where all ranks are on one host, mpi where "
      "an mpiexec started them, nccl where there are a CUDA driver and NCCL, loopback for "
      "one rank, program where HOROCACHE_PROGRAMS names some, and those that the program has registered.",
      users == nullptr);
}

StatusOr<SetParts> MakeSet(const Knobs& knobs, SetMembership membership, SetPrograms programs, SetDevices devices,
                           const UserBackends& users, const std::string& tuning) {
  const data::Transports transports = {membership.one_host(), !membership.mpi.all.empty(), devices.nccl != nullptr};
  StatusOr<control::Selector> selector =
      SelectorFor(knobs, membership.size(), transports, programs.library.get(), &users, tuning);
  if (!selector.ok()) return selector.status();
  const StatusOr<const data::KernelSet*> kernels = data::FindKernels(knobs.kernels);
  if (!kernels.ok()) return kernels.status();
  const data::BackendOptions options = BackendOptionsFor(knobs);
  data::SharedArea local = LocalArea(membership);
  data::BackendOptions with_devices = options;
  data::HostResources for_nccl;
  if (devices.nccl != nullptr) {
    with_devices.nccl = NcclFor(knobs, membership, std::move(devices.nccl), programs.logger);
    for_nccl = HostForNccl(&membership, TakeEnd(&local, 4));
  }
  with_devices.devices = std::move(devices.devices);
  std::vector<data::SharedArea> of_small, of_users;
  for (int64_t i = 0; i < SmallLanesOf(knobs, membership.ranks.size()); ++i) {
    of_small.push_back(TakeEnd(&local, kPartsForSmall));
  }
  for (size_t i = 0; i < users.size(); ++i) of_users.push_back(TakeEnd(&local, kPartsForUser));
  const bool runs_programs = programs.library != nullptr && (membership.one_host() || !membership.mpi.all.empty());
  const size_t main_bytes = runs_programs ? local.data_bytes / 2 / kCacheLine * kCacheLine : local.data_bytes;
  const data::SharedArea main = data::PartOf(local, 0, main_bytes);
  auto backends = data::MakeBackends(AreaOf(membership, main), with_devices,
                                     MpiFor(membership, std::move(membership.mpi), main), std::move(for_nccl));
  if (!backends.ok()) return backends.status();
  if (runs_programs) {
    const data::SharedArea rest = data::PartOf(local, main_bytes, local.data_bytes - main_bytes);
    auto runner = MakeProgramBackendFor(&membership, rest, options,
                                        {.library = std::move(programs.library),
                                         .kernels = *kernels,
                                         .memory = std::move(programs.memory),
                                         .log = WarningsOf(programs.logger)});
    if (!runner.ok()) return runner.status();
    backends->push_back(std::move(*runner));
  }
  SetParts parts;
  parts.backends = std::move(*backends);
  parts.kernels = *kernels;
  HC_RETURN_IF_ERROR(AddUserBackends(users, of_users, options, &membership, &parts));
  HC_RETURN_IF_ERROR(AddSmallLanes(of_small, options, &membership, &parts));
  selector->AskBackends(SupportsOf(parts.backends));
  parts.config = ConfigFor(knobs, membership);
  parts.controller = std::make_unique<control::Controller>(ControllerFor(knobs, membership, std::move(*selector)));
  parts.agreement = control::MakeAgreement(AgreementFor(knobs, membership));
  parts.channel = ChannelFor(&membership);
  return parts;
}

}  // namespace horocache::runtime
