#include "observe/timeline.h"

#include <chrono>
#include <new>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/duration.h"
#include "base/futex.h"
#include "base/text.h"

namespace horocache::observe {
namespace {

constexpr int64_t kTextNs = 50 * kNsPerMs;  // time between batches; records of that time are still in a cache
constexpr size_t kMostRecords = 1 << 18;    // most records in the queue; later ones are dropped

}  // namespace

Status Timeline::Start(const std::string& path, bool mark_rounds, const TimelineHeader& header) {
  MutexLock control(control_mutex_);
  if (on_) return InvalidArgumentError("the timeline is on already; stop it first");
  EndThread();  // of a timeline that an error has stopped
  if (ended_.load() == 0) {
    return InvalidArgumentError("the file of the timeline before this one is on a file system that does not answer");
  }
  StatusOr<std::unique_ptr<TraceFile>> file = TraceFile::Create(path);
  if (!file.ok()) return file.status();
  file_ = std::move(*file);
  text_ = std::make_unique<TraceText>(header);
  text_->Take(&pending_text_);
  HC_RETURN_IF_ERROR(file_->Append(&pending_text_));
  {
    MutexLock queue(queue_mutex_);
    stop_ = false;
    queue_.Clear();
  }
  marks_rounds_ = mark_rounds;
  ended_.store(0);
  try {
    thread_ = NamedThread("hc-timeline", [self = shared_from_this()] {
      self->Run();
      self->ended_.store(1);
      FutexWake(self->ended_);
    });
  } catch (const std::system_error& error) {
    ended_.store(1);
    return InvalidArgumentError(std::string("cannot start a thread for the timeline: ") + error.what());
  }
  on_ = true;
  return Status::Ok();
}

bool Timeline::Stop() {
  MutexLock control(control_mutex_);
  const bool was_on = on_.exchange(false);
  EndThread();
  return was_on;
}

void Timeline::EndThread() {
  {
    MutexLock queue(queue_mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  const int64_t deadline_ns = NowNs() + patience_ns_;
  while (ended_.load() == 0 && NowNs() < deadline_ns) FutexWait(ended_, 0, deadline_ns - NowNs());
  if (ended_.load() == 0) {
    const std::string limit = SecondsText(patience_ns_);
    if (thread_.Abandon()) warn_("the timeline lacks its end: its file system has not answered for " + limit);
    return;
  }
  thread_.Join();
  file_.reset();
}

// ---- the driving thread

bool Timeline::Full() {
  const size_t records =
      queue_.operations.size() + queue_.rounds.size() + queue_.tasks.size() + queue_.exchanges.size();
  const bool full = records >= kMostRecords;
  if (full) ++queue_.dropped;
  return full;
}

void Timeline::Add(const OperationTrace& trace) {
  if (log_.on()) log_.Add(trace);
  if (!on_.load(std::memory_order_relaxed)) return;
  MutexLock lock(queue_mutex_);
  if (Full()) return;
  const std::array<std::string_view, 4> texts = {trace.name, trace.op, trace.backend, trace.error};
  std::array<uint32_t, 4>& lengths = queue_.lengths.emplace_back();
  for (size_t i = 0; i < texts.size(); ++i) {
    lengths[i] = static_cast<uint32_t>(texts[i].size());
    queue_.texts += texts[i];
  }
  queue_.operations.push_back(trace);
}

void Timeline::MarkRound(uint32_t process_set, uint64_t round, int64_t now_ns) {
  MutexLock lock(queue_mutex_);
  if (!Full()) queue_.rounds.push_back({process_set, round, now_ns});
}

void Timeline::AddTask(std::string_view thread, std::string_view name, int64_t begin_ns, int64_t end_ns) {
  if (!writes()) return;
  MutexLock lock(queue_mutex_);
  if (!Full()) queue_.tasks.push_back({std::string(thread), std::string(name), begin_ns, end_ns});
}

void Timeline::AddExchange(std::string_view layer, std::string_view name, std::string_view args, int64_t begin_ns,
                           int64_t end_ns) {
  if (!writes()) return;
  MutexLock lock(queue_mutex_);
  if (!Full()) queue_.exchanges.push_back({std::string(layer), std::string(name), std::string(args), begin_ns, end_ns});
}

void Timeline::CloseInChild() {
  if (on_.exchange(false)) file_->CloseInChild();
}

// ---- the timeline's thread

void Timeline::Batch::Clear() {
  operations.clear();
  lengths.clear();
  texts.clear();
  rounds.clear();
  tasks.clear();
  exchanges.clear();
  dropped = 0;
}

void Timeline::Run() {
  Batch batch;
  bool writable = true, stop = false;
  while (!stop) {
    {
      MutexLock lock(queue_mutex_);
      // Adopted: `lock` holds this mutex already, and unlocks it at the end of the block.
      std::unique_lock<std::mutex> waiting(queue_mutex_.native(), std::adopt_lock);
      wake_.wait_for(waiting, std::chrono::nanoseconds(kTextNs),
                     [this]() HC_NO_THREAD_SAFETY_ANALYSIS { return stop_; });
      waiting.release();
      stop = stop_;
      std::swap(batch, queue_);
    }
    try {
      if (writable) {
        AddText(batch);
        writable = Write();
      }
      batch.Clear();
    } catch (const std::bad_alloc&) {
      on_ = writable = false;
    }
  }
}

void Timeline::AddText(const Batch& batch) {
  std::string_view texts = batch.texts;
  for (size_t i = 0; i < batch.operations.size(); ++i) {
    OperationTrace trace = batch.operations[i];
    const std::array<std::string_view*, 4> into = {&trace.name, &trace.op, &trace.backend, &trace.error};
    for (size_t text = 0; text < into.size(); ++text) {
      *into[text] = texts.substr(0, batch.lengths[i][text]);
      texts.remove_prefix(batch.lengths[i][text]);
    }
    text_->AddOperation(trace);
  }
  for (const Batch::Round& round : batch.rounds) text_->AddRound(round.process_set, round.round, round.at_ns);
  for (const Batch::Task& task : batch.tasks) text_->AddTask(task.thread, task.name, task.begin_ns, task.end_ns);
  for (const Batch::Exchange& each : batch.exchanges) {
    text_->AddExchange(each.layer, each.name, each.args, each.begin_ns, each.end_ns);
  }
  if (batch.dropped > 0) text_->AddDropped(batch.dropped, NowNs());
}

bool Timeline::Write() {
  if (text_->empty()) return true;
  text_->Take(&pending_text_);
  const Status written = file_->Append(&pending_text_);
  if (written.ok()) return true;
  on_ = false;
  warn_("the timeline ends here: " + written.message());
  return false;
}

}  // namespace horocache::observe
