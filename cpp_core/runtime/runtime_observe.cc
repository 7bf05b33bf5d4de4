// The runtime's diagnostics: timeline, flight record, stacks.
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/clock.h"
#include "net/mpi/watchdog.h"
#include "observe/stack_text.h"
#include "runtime/runtime.h"

namespace horocache::runtime {

namespace {

constexpr int64_t kRecordNs = 2 * kNsPerS;  // for the flight record of a process that ends

}  // namespace

std::string TimelinePath(const std::string& path, int rank) {
  std::error_code unknown;
  const std::filesystem::file_status there = std::filesystem::status(path, unknown);
  const bool is_device = std::filesystem::exists(there) && !std::filesystem::is_regular_file(there) &&
                         !std::filesystem::is_directory(there);
  std::filesystem::path name(path);
  if (std::filesystem::is_directory(there)) name /= "timeline.json";
  if (rank == 0 || is_device) return name.string();
  name.replace_filename(name.stem().string() + ".rank" + std::to_string(rank) + name.extension().string());
  return name.string();
}

observe::TimelineHeader Runtime::Header() const {
  observe::TimelineHeader header;
  header.version = config_.version;
  header.host = job_.host_names.at(static_cast<size_t>(job_.identity.cross_rank));
  header.rank = job_.identity.rank;
  header.size = job_.identity.size;
  header.clock_offset_ns = job_.clock.offset_ns;
  header.clock_error_ns = job_.clock.error_ns;
  header.clock_measured_ns = job_.clock.measured_ns;
  header.epoch_us = SteadyEpochNs() / kNsPerUs;
  return header;
}

Status Runtime::StartTimeline(const std::string& path, bool mark_rounds) {
  return timeline_->Start(TimelinePath(path, job_.identity.rank), mark_rounds, Header());
}

std::string Runtime::FlightRecord(const std::string& why, const std::string& stacks) const {
  observe::FlightReport report;
  report.rank = Header();
  report.pid = getpid();
  report.job = job_.identity.job;
  report.why = why;
  report.stacks = stacks;
  report.sets = sets_.Members();
  report.pending = table_.Pending();
  report.last = recorder_.Take();
  report.now_ns = NowNs();
  return observe::FlightText(report);
}

std::string Runtime::RecordPath() const {
  const std::string& folder = config_.knobs.flight_record;
  if (folder.empty() || folder == "off") return "";
  std::string job = job_.identity.job;  // comes from the launcher or the user: may hold any character
  const auto is_plain = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; };
  std::ranges::replace_if(job, [&](char c) { return !is_plain(static_cast<unsigned char>(c)); }, '_');
  return folder + "/flight-" + job + "-rank" + std::to_string(job_.identity.rank) + ".json";
}

std::unique_ptr<Observer> Runtime::MakeObserver() {
  Observer::Callbacks callbacks;
  callbacks.record = [this](const std::string& why, const std::string& stacks) { return FlightRecord(why, stacks); };
  callbacks.stacks = [this] {
    MutexLock lock(stacks_mutex_);
    return stacks_ == nullptr ? std::string() : stacks_->Dump();
  };
  callbacks.log_stacks = [this](uint32_t process_set, const std::string& stacks) { LogStacks(process_set, stacks); };
  callbacks.warn = [this](const std::string& text) { logger_.Warning(text); };
  const std::string name = "horocache." + std::to_string(getpid()) + "." + std::to_string(job_.identity.rank);
  return std::make_unique<Observer>(name, RecordPath(), std::move(callbacks));
}

// While the driving thread is stuck, only this thread can still end the rank's part of the job.
void Runtime::LookAtDriver() {
  const Knobs& knobs = config_.knobs;
  if (leaving_ && !std::exchange(watches_leaving_, true)) pass_watch_ = PassWatch();  // shutdown() has its own limit
  int64_t end_ns = Nanoseconds(knobs.stall_shutdown_time_seconds, kNsPerS);
  const char* knob = "HOROCACHE_STALL_SHUTDOWN_TIME_SECONDS";
  const int64_t shutdown_ns = Nanoseconds(knobs.shutdown_timeout, kNsPerS);
  if (leaving_ && (end_ns == 0 || shutdown_ns < end_ns)) {
    end_ns = shutdown_ns;
    knob = "HOROCACHE_SHUTDOWN_TIMEOUT";
  }
  const PassWatch::Verdict verdict =
      pass_watch_.Look(engine_->passes(), Nanoseconds(knobs.stall_check_time_seconds, kNsPerS), end_ns);
  if (verdict == PassWatch::Verdict::kMoves) return;
  const std::string text = "the thread that drives the operations has been in one call for " +
                           SecondsText(pass_watch_.lasts_ns()) +
                           ", probably of a library (NCCL, CUDA or MPI) that waits for another rank or for the device; "
                           "horocache dump shows the operations.";
  if (verdict == PassWatch::Verdict::kLate) {
    logger_.Warning(text);
  } else {
    cause_.Raised(text);
    observer_->NoteError({StatusCode::kStall, text});
    Nap(kRecordNs);
    net::Watchdog::EndProcess("rank " + std::to_string(job_.identity.rank) + ": " + text + " Gave up after " + knob +
                              ".");
  }
}

void Runtime::NoteError(const Status& why) {
  if (alive_) cause_.Failed(why);  // after shutdown(), this rank causes the errors itself
  observer_->NoteError(why);
}

// One report is enough: the set has ended, and what failed with it failed for the same reason.
void Runtime::NoteUnseenFailure(const Status& why, uint32_t process_set) {
  if (!told_unseen_.insert(process_set).second) return;
  logger_.Warning(
      "a result that the program has gone on with is not valid, because the operation failed on the device: " +
      why.message());
}

void Runtime::Abort(const std::string& why) {
  cause_.Raised(why);
  observer_->LogRecordPath();
  engine_->Abort(why);
}

Status Runtime::WatchStacks(const StackSource& source, const std::string& own_folder) {
  StatusOr<std::unique_ptr<StackSignal>> armed = StackSignal::Arm(source);
  if (!armed.ok()) return armed.status();
  MutexLock lock(stacks_mutex_);
  stacks_ = std::move(*armed);
  own_folder_ = own_folder;
  return Status::Ok();
}

void Runtime::LogStacks(uint32_t process_set, const std::string& stacks) {
  std::string summary;
  {
    MutexLock lock(stacks_mutex_);
    summary = observe::StackSummary(stacks, own_folder_);
  }
  if (!summary.empty())
    engine_->SendNote(process_set, "(pid " + std::to_string(getpid()) + "), which others wait for, is " + summary);
}

}  // namespace horocache::runtime
