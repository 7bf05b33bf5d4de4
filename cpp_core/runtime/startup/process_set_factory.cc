#include "runtime/startup/process_set_factory.h"

#include <utility>

#include "base/clock.h"
#include "base/memory.h"
#include "control/agreement.h"
#include "control/controller.h"
#include "data/backend.h"
#include "data/kernels/fold.h"
#include "net/hosts/control_channel.h"
#include "net/shm/control_channel.h"
#include "program/backend.h"

namespace horocache::runtime {
namespace {

control::ControllerConfig ControllerFor(const Knobs& knobs, const SetMembership& site, control::Selector selector) {
  control::ControllerConfig out;
  out.rank = site.rank;
  out.size = static_cast<int>(site.ranks.size());
  out.process_set = site.process_set;
  out.names = control::RankNames(site.process_set, site.ranks);
  out.epoch = site.epoch;
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

SetConfig ConfigFor(const Knobs& knobs, const SetMembership& site) {
  SetConfig out;
  out.process_set = site.process_set;
  out.ranks = site.ranks;
  out.rank = site.rank;
  out.stall_check = !knobs.stall_check_disable;
  out.stall_warn_ns = Nanoseconds(knobs.stall_check_time_seconds, kNsPerS);
  out.stall_fail_ns = Nanoseconds(knobs.stall_shutdown_time_seconds, kNsPerS);
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

// The shared data areas of the set's ranks on this host.
data::SharedArea LocalArea(const SetMembership& site) {
  data::SharedArea area;
  area.rank = site.local_rank;
  area.size = static_cast<int>(site.doorbells.size());
  for (int rank = 0; rank < area.size; ++rank) area.data.push_back(site.arena->data(rank).data());
  area.data_bytes = site.arena->data(0).size();
  area.regions = site.regions;
  area.ring = [doorbells = site.doorbells](int rank) mutable { doorbells[static_cast<size_t>(rank)].RingForData(); };
  return area;
}

// The data areas of all ranks of the set: none if the set is on several hosts, which share no memory.
data::SharedArea AreaOf(const SetMembership& site, const data::SharedArea& local) {
  if (site.one_host()) return local;
  data::SharedArea area;
  area.rank = site.rank;
  area.size = static_cast<int>(site.ranks.size());
  return area;
}

// `local`: the shared memory of this host.
data::MpiResources MpiFor(const SetMembership& site, SetComms comms, data::SharedArea local) {
  data::MpiResources means;
  means.all = std::move(comms.all);
  means.host_of = site.host_of;
  if (means.all.empty() || site.one_host()) return means;
  means.leaders = std::move(comms.leaders);
  means.local = std::move(local);
  means.ranks = site.ranks;
  means.process_set = site.process_set;
  return means;
}

// Bitvectors stay on their host, so between hosts the leaders speak for their ranks.
control::AgreementConfig AgreementFor(const Knobs& knobs, const SetMembership& site) {
  control::AgreementConfig agreement;
  agreement.strategy = knobs.agreement == "bits" && !site.one_host() ? "leaders" : knobs.agreement;
  agreement.radix = static_cast<int>(knobs.tree_radix);
  if (!site.one_host()) agreement.host_of = site.host_of;
  return agreement;
}

std::unique_ptr<net::RuntimeChannel> ChannelFor(SetMembership* site) {
  const bool one_host = site->one_host();
  auto local = net::MakeShmChannel(std::move(site->arena), site->local_rank, std::move(site->doorbells));
  if (one_host) return local;
  return net::MakeHostsChannel({site->rank, site->host_of, site->ranks, site->watch}, std::move(local),
                               std::move(site->link));
}

// Makes the backend of compiled programs. A fourth of its memory goes to its built-in backend, which runs operations
// without a suitable program.
StatusOr<std::unique_ptr<data::Backend>> MakeProgramRunner(SetMembership* site, const data::SharedArea& local,
                                                           const data::BackendOptions& options,
                                                           program::ProgramMeans means) {
  const size_t built_in_bytes = local.data_bytes / 4 / kCacheLine * kCacheLine;
  const data::SharedArea share = data::PartOf(local, 0, built_in_bytes);
  auto built_in = data::MakeBackends(AreaOf(*site, share), options, MpiFor(*site, std::move(site->program_mpi), share));
  if (!built_in.ok()) return built_in.status();
  means.built_in = std::move(built_in->front());
  means.links = data::PartOf(local, built_in_bytes, local.data_bytes - built_in_bytes);
  means.comm = std::move(site->program_links);
  if (!site->one_host()) means.host_of = site->host_of;
  return program::MakeProgramBackend(std::move(means));
}

std::function<void(const std::string&)> WarningsOf(const Logger* logger) {
  return [logger](const std::string& text) { logger->Warning(text); };
}

}  // namespace

StatusOr<control::Selector> SelectorFor(const Knobs& knobs, int ranks, data::Transports means,
                                        const program::Library* programs) {
  std::string rules = knobs.select;  // the first rule that applies wins
  if (!means.memory && means.mpi) {
    if (knobs.hierarchical_allreduce) rules += ";allreduce=mpi/twolevel";
    if (knobs.hierarchical_allgather) rules += ";allgather=mpi/twolevel";
    if (knobs.hierarchical_broadcast) rules += ";broadcast=mpi/twolevel";
  }
  std::vector<control::BackendTraits> traits = data::TraitsOf(ranks, means);
  if (programs != nullptr && (means.memory || means.mpi)) {
    traits.push_back(program::ProgramTraits(*programs));
    rules += ";" + programs->rules;
  }
  return control::Selector::Parse(std::move(traits), ranks, rules,
                                  " A job has the backends that fit it: shm where all ranks are on one host, mpi where "
                                  "an mpiexec started them, loopback for one rank, program where HOROCACHE_PROGRAMS "
                                  "names some.");
}

StatusOr<SetParts> MakeSet(const Knobs& knobs, SetMembership site, SetPrograms programs) {
  StatusOr<control::Selector> selector = SelectorFor(knobs, static_cast<int>(site.ranks.size()),
                                                     {site.one_host(), !site.mpi.all.empty()}, programs.library.get());
  if (!selector.ok()) return selector.status();
  const StatusOr<const data::KernelSet*> kernels = data::FindKernels(knobs.kernels);
  if (!kernels.ok()) return kernels.status();
  const data::BackendOptions options = BackendOptionsFor(knobs);
  const data::SharedArea local = LocalArea(site);
  const bool runs_programs = programs.library != nullptr && (site.one_host() || !site.mpi.all.empty());
  const size_t main_bytes = runs_programs ? local.data_bytes / 2 / kCacheLine * kCacheLine : local.data_bytes;
  const data::SharedArea main = data::PartOf(local, 0, main_bytes);
  auto backends = data::MakeBackends(AreaOf(site, main), options, MpiFor(site, std::move(site.mpi), main));
  if (!backends.ok()) return backends.status();
  if (runs_programs) {
    const data::SharedArea rest = data::PartOf(local, main_bytes, local.data_bytes - main_bytes);
    auto runner = MakeProgramRunner(&site, rest, options,
                                    {.library = std::move(programs.library),
                                     .kernels = *kernels,
                                     .memory = std::move(programs.memory),
                                     .log = WarningsOf(programs.logger)});
    if (!runner.ok()) return runner.status();
    backends->push_back(std::move(*runner));
  }
  SetParts parts;
  parts.config = ConfigFor(knobs, site);
  parts.controller = std::make_unique<control::Controller>(ControllerFor(knobs, site, std::move(*selector)));
  parts.agreement = control::MakeAgreement(AgreementFor(knobs, site));
  parts.channel = ChannelFor(&site);
  parts.backends = std::move(*backends);
  parts.kernels = *kernels;
  return parts;
}

}  // namespace horocache::runtime
