#include "runtime/runtime.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "control/selector.h"
#include "control/signature.h"
#include "data/kernels/fold.h"
#include "net/mpi/mpi_process.h"
#include "net/shm/message_link.h"
#include "runtime/p2p/message_operation.h"
#include "runtime/submission/prepare.h"
#include "wire/codec.h"

namespace horocache::runtime {
namespace {

constexpr int64_t kDeviceNapNs = 100'000;
constexpr const char* kCannotGoOn = "; the job cannot go on. See that rank's output for the cause.";

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

LogLevel ParseLevel(const std::string& name) {
  static constexpr std::array<std::string_view, 6> kNames = {"trace", "debug", "info", "warning", "error", "fatal"};
  return static_cast<LogLevel>(std::ranges::find(kNames, name) - kNames.begin());
}

ProgressConfig ProgressConfigFor(const Knobs& knobs, const net::Identity& identity) {
  ProgressConfig out;
  // With more ranks than cores, a spinning rank keeps the core from the rank that it waits for.
  out.spin_ns = identity.local_size > UsableCores() ? 0 : Nanoseconds(knobs.spin_us, kNsPerUs);
  out.yield_ns = Nanoseconds(knobs.yield_us, kNsPerUs);
  out.spare_core = identity.local_size < UsableCores();
  out.linger_ns = Nanoseconds(knobs.cycle_time, kNsPerMs);
  out.full_bytes = knobs.fusion_threshold;
  out.waiter_drives = knobs.waiter_drives;
  return out;
}

Status NoThreadError(const std::system_error& error) {
  return StartupError(std::string("cannot start a thread: ") + error.what() +
                      "; raise the limit of processes (ulimit -u, or the container's)");
}

// NCCL, if this rank has it and a CUDA driver; neither is initialised. Unless NCCL is asked for, that is the one which
// a framework has loaded already: a program without CUDA tensors is left alone.
StatusOr<std::shared_ptr<const cuda::Nccl>> FindNccl(const Knobs& knobs) {
  if (knobs.nccl == "off") return UnsupportedError("HOROCACHE_NCCL is off");
  cuda::NcclSearch search;
  search.library = knobs.nccl_library;
  search.loaded_only = knobs.nccl == "auto";
  for (std::string& folder : Split(knobs.library_path, ':')) {
    if (!folder.empty()) search.folders.push_back(std::move(folder));
  }
  StatusOr<std::shared_ptr<const cuda::Nccl>> nccl = cuda::Nccl::Load(search);
  if (nccl.ok()) HC_RETURN_IF_ERROR(cuda::Driver::Find(knobs.cuda_library));  // last: most programs do not need it
  return nccl;
}

constexpr const char* kNcclLine = "version of NCCL (set HOROCACHE_NCCL to off to do without)";

// Adds to the error of ranks with different NCCLs why this rank has none.
Status WithoutNccl(const Status& failed, const Status& why) {
  if (failed.message().find(kNcclLine) == std::string::npos) return failed;
  return {failed.code(), Sentence(failed.message()) + " This rank has no NCCL: " + why.message()};
}

StatusOr<Job> Assemble(const RuntimeConfig& config, const JobConfig& job_config) {
  try {
    if (config.arena == nullptr) return AssembleJob(job_config);
    Job job = JobInProcess(config.identity, config.arena);
    job.tuning = config.tuning;
    return job;
  } catch (const std::system_error& error) {
    return NoThreadError(error);
  }
}

Status CheckRows(const Operation& operation) {
  const wire::Signature& signature = operation.request.signature;
  const wire::Op op = signature.op;
  const auto scalar = [](const wire::TensorMeta& tensor) { return tensor.shape.empty(); };
  if (op == wire::Op::kReducescatter && std::ranges::any_of(signature.tensors, scalar)) {
    return InvalidArgumentError("Reducescatter does not support scalar inputs: they have no rows to share out.");
  }
  if (operation.rows.receive_rows.empty() && operation.rows.receive_starts.empty()) return Status::Ok();
  if (op == wire::Op::kAllgather || op == wire::Op::kAlltoall || op == wire::Op::kGather) return Status::Ok();
  return InvalidArgumentError(std::string(wire::OpName(op)) +
                              " takes no expected rows (receive_rows) and no places in the result (receive_starts)");
}

}  // namespace

Status CheckKnobs(const Knobs& knobs, const program::Library* programs, const UserBackends* users,
                  const std::string& tuning) {
  if (tuning.size() > net::kMaxAnnouncement) {
    return InvalidArgumentError("the rules of the tuning table take " + std::to_string(tuning.size()) +
                                " bytes; at most " + std::to_string(net::kMaxAnnouncement) + " are possible");
  }
  HC_RETURN_IF_ERROR(FaultInjector::Parse(knobs.fault, 0).status());
  HC_RETURN_IF_ERROR(data::FindKernels(knobs.kernels).status());
  // Checks the rules for a set that has every backend. Rules that may name programs are checked when these are loaded.
  if (!knobs.programs.empty() && programs == nullptr) return Status::Ok();
  const data::Transports all = {.shm = true, .mpi = true, .nccl = knobs.nccl != "off"};
  return SelectorFor(knobs, {1}, all, programs, users, tuning).status();
}

Runtime::Runtime(RuntimeConfig config, Job job)
    : config_(std::move(config)),
      job_(std::move(job)),
      sets_(job_.identity.size),
      logger_(ParseLevel(config_.knobs.log_level), job_.identity.rank, !config_.knobs.log_hide_time),
      metrics_(job_.identity.size),
      timeline_(observe::Timeline::Make([logger = logger_](const std::string& text) { logger.Warning(text); })),
      devices_(std::make_shared<cuda::Devices>(config_.knobs.cuda_library)),
      cause_(job_.identity.source == "horocacherun" ? config_.knobs.launcher_dir : "", job_.identity.rank) {}

Runtime::~Runtime() {
  Stop();
  if (observer_ != nullptr) observer_->Stop();  // its callbacks use the other members
}

Status Runtime::CheckPrograms() const {
  if (config_.programs == nullptr) return Status::Ok();
  std::vector<int> sizes = {job_.identity.size};
  for (const std::vector<int>& ranks : config_.process_sets) sizes.push_back(static_cast<int>(ranks.size()));
  for (const program::LibraryProgram& one : config_.programs->programs) {
    const int ranks = one.program.ranks;
    if (!one.required || std::ranges::find(sizes, ranks) != sizes.end()) continue;
    return InvalidArgumentError("HOROCACHE_PROGRAMS: program '" + one.name + "' is for " + std::to_string(ranks) +
                                " ranks, and this job has " + std::to_string(sizes[0]) +
                                ". Compile it for these, or move its file into a subfolder '" + std::to_string(ranks) +
                                "ranks', which only jobs and process sets of that size look into.");
  }
  return Status::Ok();
}

StatusOr<std::unique_ptr<Runtime>> Runtime::Start(RuntimeConfig config, const std::function<bool()>& go_on) {
  // Before this rank contacts others.
  HC_RETURN_IF_ERROR(CheckKnobs(config.knobs, config.programs.get(), &config.user_backends, config.tuning));
  bool interrupted = false;
  const auto check = [&]() -> Status {
    interrupted = interrupted || (go_on && !go_on());
    return interrupted ? Status(StatusCode::kAborted, "init() was interrupted") : Status::Ok();
  };
  StatusOr<std::shared_ptr<const cuda::Nccl>> nccl = FindNccl(config.knobs);
  if (nccl.ok()) config.nccl = *nccl;
  JobConfig job_config = JobConfigOf(config);
  job_config.check = check;
  StatusOr<Job> job = Assemble(config, job_config);
  if (!job.ok()) return nccl.ok() ? job.status() : WithoutNccl(job.status(), nccl.status());
  std::unique_ptr<Runtime> runtime(new Runtime(config, std::move(*job)));
  if (const Status made = runtime->MakeParts(check); !made.ok()) {
    runtime->ReportFailedStart(made);
    return made;
  }
  runtime->alive_ = true;
  const Knobs& knobs = runtime->knobs();
  if (!runtime->job_.no_mpi.empty() && runtime->job_.identity.rank == 0) {
    runtime->logger_.Warning("the ranks are on one host and share memory without MPI, which cannot be used: " +
                             runtime->job_.no_mpi + " HOROCACHE_MPI=off leaves this warning out.");
  }
  if (!runtime->job_.doubt.empty()) runtime->logger_.Warning(runtime->job_.doubt);
  if (!knobs.timeline.empty() && knobs.timeline != "DYNAMIC") {
    // The job works without a timeline.
    const Status started = runtime->StartTimeline(knobs.timeline, knobs.timeline_mark_cycles);
    if (!started.ok()) runtime->logger_.Warning("there will be no timeline: " + started.message());
  }
  return runtime;
}

Status Runtime::MakeParts(const std::function<Status()>& check) {
  HC_RETURN_IF_ERROR(CheckPrograms());
  // The other ranks have none either, because the ranks have compared that.
  if (config_.knobs.nccl == "on" && config_.nccl == nullptr) {
    return InvalidArgumentError("HOROCACHE_NCCL=on: " + FindNccl(config_.knobs).status().message());
  }
  JobConfig config = ConfigOfJob();
  config.check = [&]() -> Status {
    HC_RETURN_IF_ERROR(check());
    HC_RETURN_IF_ERROR(CheckLocalRanks());
    return PollFailure(&job_);
  };
  try {
    HC_RETURN_IF_ERROR(CompareClocks(config, &job_));
    observer_ = MakeObserver();
    HC_RETURN_IF_ERROR(MakeEngine(config));
    if (!config_.knobs.stall_check_disable)
      driver_watch_ = std::make_unique<Ticker>("hc-driver-watch", PassWatch::kEveryNs, [this] { LookAtDriver(); });
    return Status::Ok();
  } catch (const std::system_error& error) {
    return NoThreadError(error);
  }
}

// Tells the other ranks that this rank's start has failed. They already count on this rank, and without this notice the
// existing parts would leave the job as if it had ended well.
void Runtime::ReportFailedStart(const Status& why) {
  NoteFailedStart(job_);
  // Either this rank has lost another rank, or the other ranks now lose this one, and MPI_Finalize would hang. Invalid
  // arguments are the exception: all ranks reject them.
  if (why.code() != StatusCode::kInvalidArgument) net::LeaveMpiUnfinalized();
  const bool is_first = WhyJobLost(/*running=*/false).ok();  // no rank of this host has reported a failure before
  Status reason = why;                                       // kPeerLost names the lost rank
  if (is_first && why.code() != StatusCode::kPeerLost && job_.failed_elsewhere.ok())
    reason = {StatusCode::kPeerLost, NotStarted(job_, why)};
  PublishFailure(job_, is_first ? reason : Status::Ok());
  if (is_first) SendFailure(job_, reason);
  job_.mpi.Abandon();  // a late failure note must not reach the next job
}

JobConfig Runtime::JobConfigOf(const RuntimeConfig& config) {
  std::string agree = ProcessSets::AgreeText(config.process_sets);
  if (config.programs != nullptr) agree += "programs=" + config.programs->Summary() + "\n";
  for (const control::BackendTraits& backend : config.user_backends) {
    agree += "backend " + Printable(backend.name) + " of the program=" + Join(control::OperationsOf(backend), ",") +
             ";" + std::to_string(backend.moved_dtypes) + "," + std::to_string(backend.reduced_dtypes) + "\n";
  }
  const std::string nccl = config.nccl == nullptr ? "none" : cuda::Nccl::VersionText(config.nccl->version());
  agree += std::string(kNcclLine) + "=" + nccl + "\n";
  return {config.knobs,        config.identity, config.epoch,          config.version,         agree,
          config.communicator, config.ranks,    config.programs.get(), config.nccl != nullptr, config.user_backends,
          config.tuning};
}

// Makes the engine for messages. Ranks of this host are reached through shared memory, other ranks over MPI.
StatusOr<std::unique_ptr<PointToPoint>> Runtime::MakeMessages(const JobConfig& job_config) {
  PointToPointConfig config;
  config.rank = job_.identity.rank;
  config.links.push_back(net::MakeShmLink(job_.peers.arena, job_.identity.local_rank));
  config.routes.assign(static_cast<size_t>(job_.identity.size), {});
  std::vector<int> local_ranks(config.routes.size(), -1);
  for (size_t local_rank = 0; local_rank < job_.here.size(); ++local_rank) {
    const auto rank = static_cast<size_t>(job_.here[local_rank]);
    local_ranks[rank] = config.routes[rank].number = static_cast<int>(local_rank);
  }
  StatusOr<std::unique_ptr<net::Link>> others = LinkAll(job_config, job_);
  if (!others.ok()) return others.status();
  if (*others != nullptr) config.links.push_back(std::move(*others));
  for (size_t rank = 0; rank < config.routes.size(); ++rank) {
    if (local_ranks[rank] < 0) config.routes[rank] = {1, static_cast<int>(rank)};
  }
  config.stall_check = !config_.knobs.stall_check_disable;
  config.stall_warn_ns = Nanoseconds(config_.knobs.stall_check_time_seconds, kNsPerS);
  config.stall_fail_ns = Nanoseconds(config_.knobs.stall_shutdown_time_seconds, kNsPerS);
  config.stall_fail_computing = !config_.knobs.IsDefault("stall_shutdown_time_seconds");
  config.computed_ns = [arena = job_.peers.arena, local_ranks](int rank) {
    const int local_rank = local_ranks[static_cast<size_t>(rank)];
    return local_rank < 0 ? int64_t{0} : arena->computed_ns(local_rank).load();
  };
  config.timeline = timeline_.get();
  config.has_left = [arena = job_.peers.arena, local_ranks](int rank) {
    const int local_rank = local_ranks[static_cast<size_t>(rank)];
    return local_rank >= 0 && arena->state(local_rank).load() == net::RankState::kLeft;
  };
  return std::make_unique<PointToPoint>(std::move(config), &table_, &metrics_);
}

StatusOr<SetParts> Runtime::ConnectAndMakeSet(const JobConfig& config, SetMembership membership) {
  for (net::Doorbell& doorbell : membership.doorbells) doorbell.CountWakes(metrics_.wakes.number());
  membership.host_monitor = host_monitor_.get();
  HC_RETURN_IF_ERROR(ConnectHosts(config, job_, &membership));
  program::SharedMemorySource memory;
  if (heap_ != nullptr) {
    memory = [heap = heap_](int64_t bytes) -> std::shared_ptr<std::byte> {
      auto block = heap->Allocate(static_cast<size_t>(bytes));
      return block == nullptr ? nullptr : std::shared_ptr<std::byte>(block, block->memory().data());
    };
  }
  const uint32_t number = membership.process_set;
  StatusOr<SetParts> parts =
      MakeSet(config_.knobs, std::move(membership), {config_.programs, std::move(memory), &logger_},
              {devices_, config_.nccl}, config_.user_backends, job_.tuning);
  if (!parts.ok()) return parts;
  OfferUserCalls(number, parts->user_calls);
  const MutexLock lock(settings_mutex_);
  control::Selector& kept = selectors_.insert_or_assign(number, parts->controller->config().selector).first->second;
  kept.AskBackends(nullptr);  // it may outlive the set's backends
  return parts;
}

// The parts of the progress engine that need no other rank.
ProgressEngine::Parts Runtime::PartsOfEngine() {
  ProgressEngine::Parts parts;
  SetCallbacks(&parts);
  parts.timeline = timeline_.get();
  parts.host_monitor = host_monitor_.get();
  parts.rank = job_.identity.rank;
  parts.doorbell = job_.peers.arena->doorbell(job_.identity.local_rank);
  parts.doorbell.CountWakes(metrics_.wakes.number());
  return parts;
}

// Sets the functions by which the progress engine reports events and learns of other ranks' failures.
void Runtime::SetCallbacks(ProgressEngine::Parts* parts) {
  parts->on_stack_request = [this](uint32_t process_set) { observer_->AskStacks(process_set); };
  // Noted before the program sees the error. The program may end at once, and then this rank must not be taken for the
  // cause.
  parts->on_end = [arena = job_.peers.arena, own = job_.identity.local_rank](const Status& why) {
    if (why.code() == StatusCode::kPeerLost) arena->NoteJobLost(own, why.code(), why.message());
  };
  parts->on_settings = [this](const control::Settings& settings) { OnSettings(settings); };
  parts->on_lost_elsewhere = [this](int rank, const std::string& what) { OnLostElsewhere(rank, what); };
  parts->on_operation_abandoned = [heap = heap_] {
    if (heap != nullptr) heap->Close();
  };
  parts->given_up_elsewhere = [this] { return WhyJobLost(/*running=*/false); };
  parts->report_given_up = [this](const Status& why) { PublishFailure(job_, why); };
  parts->on_computes = [arena = job_.peers.arena, own = job_.identity.local_rank](int64_t now_ns) {
    arena->computed_ns(own).store(now_ns);
  };
}

Status Runtime::MakeEngine(const JobConfig& config) {
  if (const auto& regions = job_.peers.arena->regions(); regions != nullptr)
    heap_ = std::make_shared<net::SharedHeap>(regions, job_.identity.local_rank);
  windows_ = std::make_unique<Windows>(heap_, job_.peers.arena->regions(),
                                       ProgressConfigFor(config_.knobs, job_.identity).spin_ns, metrics_.exchanges);
  StatusOr<std::unique_ptr<net::HostMonitor>> host_monitor = MakeHostMonitor(config, job_);
  if (!host_monitor.ok()) return host_monitor.status();
  host_monitor_ = std::move(*host_monitor);
  // The sets are equal on all ranks by now, so an error occurs on all ranks.
  for (const std::vector<int>& ranks : config_.process_sets) {
    const uint32_t number = sets_.next();
    HC_RETURN_IF_ERROR(sets_.Propose(number, ranks));
    sets_.Open(number);
  }
  ProgressEngine::Parts parts = PartsOfEngine();
  for (uint32_t number = 0; number <= config_.process_sets.size(); ++number) {
    if (!IsMember(number)) continue;
    const bool given = number > 0 && config_.arena != nullptr;
    StatusOr<SetMembership> membership =
        ConnectOnHost(config, job_, sets_, number, given ? config_.set_arenas.at(number - 1) : nullptr);
    if (!membership.ok()) return membership.status();
    StatusOr<SetParts> set = ConnectAndMakeSet(config, std::move(*membership));
    if (!set.ok()) return set.status();
    parts.sets.push_back(std::move(*set));
  }
  StatusOr<std::unique_ptr<PointToPoint>> messages = MakeMessages(config);
  if (!messages.ok()) return messages.status();
  parts.messages = std::move(*messages);
  auto faults = FaultInjector::Parse(config_.knobs.fault, job_.identity.rank);
  if (!faults.ok()) return faults.status();
  parts.faults = std::move(*faults);
  engine_ = std::make_unique<ProgressEngine>(ProgressConfigFor(config_.knobs, job_.identity), std::move(parts), &table_,
                                             &metrics_, &logger_);
  if (config_.arena == nullptr && job_.identity.local_size > 1) {
    peer_monitor_ = std::make_unique<net::PeerMonitor>(
        &job_.peers, job_.identity.local_rank, [this](int rank, const std::string& how) { OnLost(rank, how); },
        [this](const std::string& what) { engine_->Abort(what); });
  }
  return Status::Ok();
}

int Runtime::mpi() const {
  if (job_.mpi.empty()) return 0;
  return job_.mpi.mpi().QueryThread() == net::MpiThreads::kMultiple ? 2 : 1;
}

// Returns the reason if another rank of this host has left a lost job; ok otherwise. With `running`, a rank counts as
// soon as it has seen the loss.
Status Runtime::WhyJobLost(bool running) const {
  net::Arena& arena = *job_.peers.arena;
  for (int rank = 0; rank < arena.layout().ranks; ++rank) {
    if (rank == job_.identity.local_rank || !(running || net::HasLeft(arena.state(rank).load()))) continue;
    HC_RETURN_IF_ERROR(arena.WhyJobLost(rank));
  }
  return Status::Ok();
}

// Returns an error if a rank of this host has ended or cannot continue. Used during start-up, before the peer monitor
// runs.
Status Runtime::CheckLocalRanks() const {
  const std::optional<net::EndedRank> ended = net::FindEnded(job_.peers);
  HC_RETURN_IF_ERROR(WhyJobLost(/*running=*/true));  // a reason that the rank gave before it ended comes first
  if (!ended) return Status::Ok();
  return {StatusCode::kPeerLost, Ended(ended->rank, ended->how) + kCannotGoOn};
}

std::string Runtime::Ended(int local_rank, const std::string& how) const {
  const int rank = job_.here[static_cast<size_t>(local_rank)];
  const std::string where =
      job_.one_host() ? "this host" : "host " + job_.host_names[static_cast<size_t>(job_.identity.cross_rank)];
  const int pid = job_.peers.pids[static_cast<size_t>(local_rank)];
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(pid) + " on " + where + ") " + how;
}

void Runtime::OnLost(int local_rank, const std::string& how) {
  const std::string what = Ended(local_rank, how);
  recorder_.Note(what, NowNs());
  windows_->Lose(job_.here[static_cast<size_t>(local_rank)]);
  engine_->Lose(job_.here[static_cast<size_t>(local_rank)], {StatusCode::kPeerLost, what + kCannotGoOn});
}

Status Runtime::Check(const Operation& operation) const {
  const wire::Signature& signature = operation.request.signature;
  if (!alive_) return {StatusCode::kShutDown, "horocache has been shut down on this rank; call init() again."};
  const uint32_t set = operation.process_set;
  HC_RETURN_IF_ERROR(sets_.CheckMember(set, job_.identity.rank, wire::OpName(signature.op)));
  if (wire::IsPointToPoint(signature.op)) return CheckRoute(operation);
  const auto too_long = [](const std::string& name) { return name.size() > wire::kMaxNameBytes; };
  const bool long_member =
      std::ranges::any_of(signature.tensors, [&](const wire::TensorMeta& tensor) { return too_long(tensor.name); });
  if (too_long(signature.name) || long_member) {
    return {StatusCode::kInvalidArgument,
            "a tensor's name has more than " + std::to_string(wire::kMaxNameBytes) + " bytes"};
  }
  HC_RETURN_IF_ERROR(CheckRows(operation));
  HC_RETURN_IF_ERROR(CheckDevice(operation));
  const bool to_root = signature.op == wire::Op::kReduce || signature.op == wire::Op::kGather;
  const bool has_result = !to_root || signature.root == sets_.RankIn(set, job_.identity.rank);
  HC_RETURN_IF_ERROR(CheckResults(operation, has_result));
  if (!control::Fuses(signature.op) || !has_result) return Status::Ok();
  const auto lost = [](const TensorArgument& tensor) { return tensor.output == nullptr && tensor.count > 0; };
  if (std::ranges::any_of(operation.tensors, lost)) {
    return {StatusCode::kInvalidArgument, std::string(wire::OpName(signature.op)) +
                                              " needs a tensor of the caller's for its result; the core allocates only "
                                              "results whose size differs by rank"};
  }
  return Status::Ok();
}

// NCCL has one device of each rank in a process set, that of its first operation.
Status Runtime::CheckDevice(const Operation& operation) const {
  const bool may_be_nccl = operation.computed.has_value() && config_.nccl != nullptr &&
                           control::Allows(operation.request.signature.backend, "nccl");
  if (!may_be_nccl) return Status::Ok();
  const int device = operation.computed->device();
  const MutexLock lock(nccl_devices_mutex_);
  const int first = nccl_devices_.emplace(operation.process_set, device).first->second;
  if (device == first) return Status::Ok();
  return UnsupportedError("the tensor is on cuda:" + std::to_string(device) +
                          ", and this rank's first one in the process set was on cuda:" + std::to_string(first) +
                          ". NCCL takes one device of a rank: start one process for each GPU and call "
                          "torch.cuda.set_device(hvd.local_rank()), or name another backend (backend=\"shm\"), or set "
                          "HOROCACHE_NCCL=off.");
}

// Checks that the message can reach its peer.
Status Runtime::CheckRoute(const Operation& operation) const {
  HC_RETURN_IF_ERROR(CheckMessage(operation, job_.identity.size));
  if (operation.process_set == 0) return Status::Ok();
  return sets_.CheckMember(operation.process_set, PeerRank(operation), DescribeMessage(operation));
}

Status Runtime::AwaitStream(Operation* operation, int device, cuda::StreamHandle stream) {
  if (config_.knobs.check_finite && wire::HasReduceOp(operation->request.signature.op)) {
    return UnsupportedError("HOROCACHE_CHECK_FINITE reads tensors on the host, so it has no CUDA tensors; unset it");
  }
  StatusOr<std::shared_ptr<cuda::Device>> opened = devices_->Get(device);
  if (!opened.ok()) return opened.status();
  StatusOr<cuda::StreamEvent> computed = cuda::StreamEvent::Record(std::move(*opened), stream);
  // The other ranks wait for this rank's tensors, which no later call can submit.
  if (computed.status().code() == StatusCode::kAborted) engine_->Abort(computed.status().message());
  if (!computed.ok()) return computed.status();
  operation->computed.emplace(std::move(*computed));
  return Status::Ok();
}

Status Runtime::Queue(Operation* operation, bool* first) {
  engine_->NoteSubmitter();
  if (heap_ != nullptr) HoldBlocks(heap_.get(), operation);
  HC_RETURN_IF_ERROR(Check(*operation));
  if (!operation->prepared.same_memory) HC_RETURN_IF_ERROR(CheckApart(*operation));
  HC_RETURN_IF_ERROR(NoteDefect(config_.knobs.check_finite, operation));
  return table_.Add(operation, NowNs(), first);
}

Status Runtime::Submit(Operation* operation, bool wait_follows) {
  const bool message = wire::IsPointToPoint(operation->request.signature.op);
  bool first = false;
  Status status;
  try {
    status = Queue(operation, &first);
    if (!status.ok()) {
      recorder_.Note("not submitted: " + status.message(), NowNs());
      NoteError(status);
    }
  } catch (const std::bad_alloc&) {
    status = NoMemoryError();
  }
  if (!status.ok()) {
    table_.Recycle(operation);
    return status;
  }
  const bool wake = (first || message) && !(wait_follows && config_.knobs.waiter_drives);
  const Status fault = engine_->NoteSubmission(wake, message, operation->bytes);
  if (!fault.ok()) engine_->Abort(fault.message());
  return Status::Ok();
}

std::shared_ptr<std::byte> Runtime::Allocate(int64_t bytes) {
  if (heap_ != nullptr) {
    const auto block = heap_->Allocate(static_cast<size_t>(bytes));
    if (block != nullptr) return {block, block->memory().data()};
  }
  const bool wanted = job_.identity.local_size > 1 && knobs().region_bytes != 0;
  if (wanted && !warned_private_.exchange(true)) {
    logger_.Warning("there is no shared memory left for a tensor of " + std::to_string(bytes) + " bytes (" +
                    std::to_string(heap_ == nullptr ? 0 : heap_->bytes()) +
                    " bytes are in use): it and maybe later ones are private, and their collectives copy them. Raise "
                    "HOROCACHE_REGION_BYTES or the memory limit, or set it to 0.");
  }
  const size_t rounded = RoundUp(static_cast<size_t>(bytes) + 1, kCacheLine);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kCacheLine, rounded));
  return {memory, [](std::byte* at) { std::free(at); }};
}

void Runtime::Stop() {
  if (alive_) AwaitDevices();
  if (alive_.exchange(false) || leaves_with_.exchange(0) != 0) LeaveJob();
  CloseUserCalls();
}

// The end of the process ends what its devices do, and the other ranks' devices wait for them. Late exit handlers can
// ask no device any more.
void Runtime::AwaitDevices() const {
  const int64_t deadline_ns = NowNs() + Nanoseconds(config_.knobs.shutdown_timeout, kNsPerS);
  while (table_.launched() > 0 && engine_->WhyLost().ok()) {
    if (NowNs() >= deadline_ns) {
      logger_.Warning("shutdown: this rank's device has not ended " + std::to_string(table_.launched()) +
                      " operations within " + SecondsText(Nanoseconds(config_.knobs.shutdown_timeout, kNsPerS)) +
                      " (HOROCACHE_SHUTDOWN_TIMEOUT), so they may fail on other ranks. Wait for the device before the "
                      "end, with torch.cuda.synchronize(), or raise the limit.");
      return;
    }
    Nap(kDeviceNapNs);
  }
}

bool Runtime::StopWithProcess() {
  if (alive_) AwaitDevices();
  if (!alive_.exchange(false)) return false;
  CloseUserCalls();  // their threads must end before the interpreter does
  leaves_with_.store(getpid());
  const bool at_exit =
      peer_monitor_ != nullptr && job_.mpi.empty() && engine_->WhyLost().ok() && !engine_->AnybodyWaits();
  if (at_exit && on_exit(&Runtime::OnExit, this) == 0) {
    observer_->Stop();  // the interpreter, which writes the stacks, ends now
    return true;
  }
  Stop();
  return false;
}

// Runs when the interpreter and its objects are gone.
void Runtime::OnExit(int code, void* runtime) {
  auto* const self = static_cast<Runtime*>(runtime);
  if (self->leaves_with_.load() != getpid()) return;  // stopped already, or a forked child
  constexpr int kCodeBits = 0xff;
  if ((code & kCodeBits) != 0) self->Abort("it ended with exit code " + std::to_string(code & kCodeBits));
  self->Stop();
}

void Runtime::LeaveJob() {
  leaving_ = true;
  windows_->Close();
  engine_->Leave(NowNs() + Nanoseconds(config_.knobs.shutdown_timeout, kNsPerS));
  const Status why = engine_->WhyLost();
  net::Arena& arena = *job_.peers.arena;
  std::atomic<net::RankState>& state = arena.state(job_.identity.local_rank);
  if (state.load() == net::RankState::kJobLost || !why.ok()) {
    arena.LeaveJobLost(job_.identity.local_rank, why.code(), why.message());
  } else {
    state.store(net::RankState::kLeft);
  }
  peer_monitor_.reset();
  job_.peers.duplicates.reset();
  observer_->Stop();  // later failures belong to the shutdown
  const StatusCode end = engine_->Stop().code();
  driver_watch_.reset();
  timeline_->Stop();
  const bool together = end == StatusCode::kOk || end == StatusCode::kShutDown || end == StatusCode::kAborted;
  if (!together) net::LeaveMpiUnfinalized();
}

void Runtime::ForkedChild() {
  if (peer_monitor_ != nullptr) peer_monitor_->CloseInChild();
  job_.peers.CloseInChild();
  timeline_->CloseInChild();
  observer_->CloseInChild();
  alive_ = false;
}

}  // namespace horocache::runtime
