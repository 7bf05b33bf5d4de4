#include "dag/engine.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "dag/ended_tasks.h"

namespace horocache::dag {

namespace {

constexpr int64_t kForever = std::numeric_limits<int64_t>::max() / 2;
constexpr double kSliceSeconds = 0.1;      // between two calls of go_on
constexpr double kCloseSeconds = 5;        // of a destroyed engine
constexpr uint8_t kWaitQueue = UINT8_MAX;  // of the operations by which threads wait; it has no threads

thread_local const void* running_for = nullptr;  // the engine whose operation this thread runs

FailurePtr MakeFailure(StatusCode code, std::string text) {
  return std::make_shared<const Failure>(Failure{{code, std::move(text)}, nullptr});
}

const FailurePtr& ClosedFailure() {
  static const auto* const failure =
      new FailurePtr(MakeFailure(StatusCode::kShutDown, "the engine was closed before the operation started"));
  return *failure;
}

// That of an exception which left a task, where memory may have run out.
const FailurePtr& ThrownFailure() {
  static const auto* const failure = new FailurePtr(MakeFailure(StatusCode::kOutOfMemory, std::string(kNoMemory)));
  return *failure;
}

// Marks the thread as running an operation of an engine.
class Running {
 public:
  explicit Running(const void* engine) : before_(std::exchange(running_for, engine)) {}
  ~Running() { running_for = before_; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  const void* const before_;
};

}  // namespace

struct Engine::State {
  struct Ready {
    int32_t priority = 0;
    uint64_t sequence = 0;
    Handle operation = kNoHandle;
    // The largest runs first.
    friend bool operator<(const Ready& a, const Ready& b) {
      return a.priority != b.priority ? a.priority < b.priority : a.sequence > b.sequence;
    }
  };
  struct Queue {
    std::vector<Ready> ready;  // a heap
    std::condition_variable filled;
    int sleeping = 0;  // threads
  };
  // How far an operation is.
  struct Progress {
    int64_t started_ns = 0;  // 0: not yet
    bool is_in_run = false;
    bool has_ended = false;   // Complete was called within Run
    bool runs_again = false;  // RunAgain was called, within Run or since
    FailurePtr failure;
  };
  // Holds the mutex, and counts how often it was not free. Tells the tasks that have ended after it has let it go.
  class HC_SCOPED_CAPABILITY Lock {
   public:
    explicit Lock(State* state) HC_ACQUIRE(state->mutex) : state_(state) {
      if (state->mutex.TryLock()) return;
      state->mutex.Lock();
      ++state->counters.contended;
    }
    ~Lock() HC_RELEASE() {
      state_->mutex.Unlock();
      ended.Tell();
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    EndedTasks ended;

   private:
    State* const state_;
  };

  // Queues the operations that have become ready, and ends those that must not run, which may make more ready. Returns
  // true if `mine`, which the caller runs, is ready and was not ended; it is not queued.
  bool Dispatch(EndedTasks* ended, Handle mine = kNoHandle) HC_REQUIRES(mutex);
  enum class Dispatched { kQueued, kEnded, kLeftToCaller };
  Dispatched DispatchOne(Handle operation, EndedTasks* ended, Handle mine) HC_REQUIRES(mutex);
  void Enqueue(Handle operation) HC_REQUIRES(mutex);
  void End(Handle operation, FailurePtr failure, EndedTasks* ended) HC_REQUIRES(mutex);
  Handle Pop(Queue* queue) HC_REQUIRES(mutex);
  // An operation that a thread is to run.
  struct Job {
    Handle operation = kNoHandle;
    Task* task = nullptr;
    FailurePtr inherited;
  };
  // Marks the operation as running.
  Job Start(Handle operation) HC_REQUIRES(mutex);
  bool HasStarted(Handle operation) const HC_REQUIRES(mutex) {
    return Graph::SlotOf(operation) < progress.size() && progress[Graph::SlotOf(operation)].started_ns != 0;
  }
  Progress& ProgressOf(Handle operation) HC_REQUIRES(mutex) { return progress[Graph::SlotOf(operation)]; }
  // True if Complete and RunAgain apply to the operation.
  bool IsUnderWay(Handle operation) const HC_REQUIRES(mutex) {
    if (graph.Find(operation) == nullptr || !HasStarted(operation)) return false;
    const Progress& at = progress[Graph::SlotOf(operation)];
    return !at.has_ended && !at.runs_again;
  }
  void Run(const Job& job) HC_EXCLUDES(mutex);
  void Serve(size_t queue) HC_EXCLUDES(mutex);  // the body of a thread
  void RunInline() HC_EXCLUDES(mutex);
  // Queues an operation that has started, for its next Run.
  void Requeue(Handle operation, EndedTasks* ended) HC_REQUIRES(mutex);
  void SkipQueued(EndedTasks* ended) HC_REQUIRES(mutex);
  FailurePtr TakeFailure(Handle variable) HC_REQUIRES(mutex) {
    FailurePtr failure = graph.TakeFailure(variable);
    std::erase(untold, failure);
    return failure;
  }
  void NoteUntold(const FailurePtr& failure) HC_REQUIRES(mutex) {
    if (std::ranges::find(untold, failure) == untold.end()) untold.push_back(failure);
  }
  // Has room for everything that the end of the operations pushed so far may need.
  void Reserve() HC_REQUIRES(mutex);
  void NotifyIfIdle() HC_REQUIRES(mutex) {
    if (is_naive || closed || graph.pending() == 0) changed.notify_all();
  }

  Mutex mutex;
  std::condition_variable changed;             // see NotifyIfIdle
  std::vector<std::unique_ptr<Queue>> queues;  // the vector is constant; guarded by the mutex
  bool is_naive = false;                       // constant
  Graph graph HC_GUARDED_BY(mutex);
  Counters counters HC_GUARDED_BY(mutex);
  std::vector<Handle> newly_ready HC_GUARDED_BY(mutex);  // kept for its memory
  std::vector<Progress> progress HC_GUARDED_BY(mutex);   // by the operation's slot
  std::vector<FailurePtr> untold HC_GUARDED_BY(mutex);   // failures that no wait has returned, in order
  size_t running HC_GUARDED_BY(mutex) = 0;               // operations that have started and not ended
  int serving HC_GUARDED_BY(mutex) = 0;                  // threads that have not returned
  bool runs_inline HC_GUARDED_BY(mutex) = false;         // a thread is in RunInline
  bool closed HC_GUARDED_BY(mutex) = false;
};

bool Engine::State::Dispatch(EndedTasks* ended, Handle mine) {
  bool is_mine_ready = false;
  for (bool again = true; again;) {
    newly_ready.clear();
    graph.TakeReady(&newly_ready);
    again = false;
    for (const Handle operation : newly_ready) {
      const Dispatched how = DispatchOne(operation, ended, mine);
      again |= how == Dispatched::kEnded;
      is_mine_ready |= how == Dispatched::kLeftToCaller;
    }
  }
  return is_mine_ready;
}

Engine::State::Dispatched Engine::State::DispatchOne(Handle operation, EndedTasks* ended, Handle mine) {
  const Graph::Operation what = *graph.Find(operation);
  FailurePtr failure = what.always_runs ? nullptr : graph.Inherited(operation);
  if (failure == nullptr && closed) failure = ClosedFailure();
  if (what.queue == kWaitQueue || failure != nullptr) {
    counters.skipped += failure != nullptr ? 1 : 0;
    static_cast<void>(graph.Complete(operation, failure));
    if (failure == ClosedFailure()) NoteUntold(failure);
    ended->Add({static_cast<Task*>(what.task), std::move(failure), false});
    return Dispatched::kEnded;
  }
  if (operation == mine) return Dispatched::kLeftToCaller;
  Enqueue(operation);
  return Dispatched::kQueued;
}

void Engine::State::Enqueue(Handle operation) {
  const Graph::Operation& what = *graph.Find(operation);
  Queue& queue = *queues[what.queue];
  queue.ready.push_back({what.priority, graph.SequenceOf(operation), operation});
  std::push_heap(queue.ready.begin(), queue.ready.end());
  if (queue.sleeping > 0) queue.filled.notify_one();
}

void Engine::State::End(Handle operation, FailurePtr failure, EndedTasks* ended) {
  auto* const task = static_cast<Task*>(graph.Find(operation)->task);
  ProgressOf(operation) = Progress();
  --running;
  ++counters.ended;
  if (failure != nullptr) {
    ++counters.failed;
    NoteUntold(failure);
  }
  static_cast<void>(graph.Complete(operation, failure));
  ended->Add({task, std::move(failure), true});
  Dispatch(ended);
  NotifyIfIdle();
}

Handle Engine::State::Pop(Queue* queue) {
  std::pop_heap(queue->ready.begin(), queue->ready.end());
  const Handle operation = queue->ready.back().operation;
  queue->ready.pop_back();
  return operation;
}

Engine::State::Job Engine::State::Start(Handle operation) {
  const Graph::Operation& what = *graph.Find(operation);
  Progress& at = ProgressOf(operation);
  if (at.started_ns == 0) {
    at.started_ns = NowNs();
    ++running;
  }
  at.is_in_run = true;
  at.runs_again = false;
  return {operation, static_cast<Task*>(what.task), what.always_runs ? graph.Inherited(operation) : nullptr};
}

void Engine::State::Run(const Job& job) {
  Outcome outcome;
  {
    const Running running(this);
    try {
      outcome = job.task->Run(job.operation, job.inherited);
    } catch (const std::exception&) {
      outcome = {true, ThrownFailure()};
    }
  }
  Lock lock(this);
  Progress& at = ProgressOf(job.operation);
  at.is_in_run = false;
  if (at.has_ended) {
    End(job.operation, std::move(at.failure), &lock.ended);
  } else if (at.runs_again) {
    Requeue(job.operation, &lock.ended);
  } else if (outcome.ended) {
    End(job.operation, std::move(outcome.failure), &lock.ended);
  }
}

void Engine::State::Requeue(Handle operation, EndedTasks* ended) {
  if (closed) {
    End(operation, ClosedFailure(), ended);
  } else {
    Enqueue(operation);
  }
  NotifyIfIdle();
}

void Engine::State::Serve(size_t number) {
  Queue& queue = *queues[number];
  for (;;) {
    Job job;
    {
      Lock lock(this);
      ++queue.sleeping;
      const auto filled = [&]() HC_NO_THREAD_SAFETY_ANALYSIS { return closed || !queue.ready.empty(); };
      WaitUntil(&mutex, &queue.filled, kForever, filled);
      --queue.sleeping;
      if (closed) break;
      job = Start(Pop(&queue));
    }
    Run(job);
  }
  Lock lock(this);
  --serving;
  changed.notify_all();
}

// The naive engine: runs what is ready until nothing is, one operation at a time. An operation that pushes others is
// followed by them.
void Engine::State::RunInline() {
  for (;;) {
    Job job;
    {
      Lock lock(this);
      if (queues[0]->ready.empty() || runs_inline) return;
      runs_inline = true;
      job = Start(Pop(queues[0].get()));
    }
    Run(job);
    Lock lock(this);
    const auto has_moved = [&]() HC_NO_THREAD_SAFETY_ANALYSIS {
      return graph.Find(job.operation) == nullptr || ProgressOf(job.operation).runs_again;
    };
    WaitUntil(&mutex, &changed, kForever, has_moved);
    runs_inline = false;
  }
}

void Engine::State::SkipQueued(EndedTasks* ended) {
  for (const auto& queue : queues) {
    const std::vector<Ready> skipped = std::exchange(queue->ready, {});
    for (const Ready& each : skipped) {
      if (HasStarted(each.operation)) {
        End(each.operation, ClosedFailure(), ended);
        continue;
      }
      ++counters.skipped;
      auto* const task = static_cast<Task*>(graph.Find(each.operation)->task);
      static_cast<void>(graph.Complete(each.operation, ClosedFailure()));
      NoteUntold(ClosedFailure());
      ended->Add({task, ClosedFailure(), false});
    }
  }
  Dispatch(ended);
}

void Engine::State::Reserve() {
  const size_t most = graph.pending() + 1;
  const auto reserve = [&](auto* list) HC_NO_THREAD_SAFETY_ANALYSIS {
    if (list->capacity() >= most) return;
    ++counters.allocations;
    list->reserve(2 * most);
  };
  for (const auto& queue : queues) reserve(&queue->ready);
  reserve(&newly_ready);
  const size_t slots = graph.operation_slots();
  if (progress.size() < slots) {
    ++counters.allocations;
    progress.resize(2 * slots);
  }
}

namespace {

// The operation by which a thread waits for variables. The thread may give up first.
class Waiter final : public Task {
 public:
  static std::shared_ptr<Waiter> Make() {
    auto made = std::shared_ptr<Waiter>(new Waiter);
    made->self_ = made;
    return made;
  }
  // Returns true once the operation has ended; false at the deadline.
  bool Wait(int64_t deadline_ns, Engine::Helper* helper) {
    const auto done = [this] { return has_ended_.load(); };
    {
      const MutexLock lock(mutex_);
      helper_ = helper;
    }
    const bool helped = helper != nullptr && helper->Help(done, deadline_ns);
    const MutexLock lock(mutex_);
    helper_ = nullptr;
    return helped ? done() : WaitUntil(&mutex_, &ended_, deadline_ns, done);
  }

  Outcome Run(Handle, const FailurePtr&) override { return {}; }
  void Ended(const FailurePtr&, bool) override {
    const std::shared_ptr<Waiter> self = std::move(self_);
    const MutexLock lock(mutex_);
    has_ended_ = true;
    ended_.notify_all();
    if (helper_ != nullptr) helper_->Wake();
  }
  std::string Name() const override { return "wait"; }

 private:
  Waiter() = default;

  Mutex mutex_;
  std::condition_variable ended_;
  std::atomic<bool> has_ended_{false};
  Engine::Helper* helper_ HC_GUARDED_BY(mutex_) = nullptr;  // of the thread that waits
  std::shared_ptr<Waiter> self_;                            // until Ended
};

Status WaitWithinError() {
  return InvalidArgumentError(
      "a wait within an operation of the engine could be for the operation itself. Let the operation read the variable "
      "instead");
}

}  // namespace

Engine::Engine(Options options) : state_(std::make_shared<State>()) {
  state_->is_naive = options.threads.empty();
  if (state_->is_naive) options.threads = {0};
  for (size_t queue = 0; queue < options.threads.size(); ++queue)
    state_->queues.push_back(std::make_unique<State::Queue>());
  for (size_t queue = 0; queue < options.threads.size(); ++queue) {
    for (int number = 0; number < options.threads[queue]; ++number) {
      {
        const MutexLock lock(state_->mutex);
        ++state_->serving;
      }
      const std::string name = options.name + "-" + std::to_string(threads_.size());
      threads_.emplace_back(name, [state = state_, queue] { state->Serve(queue); });
    }
  }
}

Engine::~Engine() {
  if (!is_closed_) Close(DeadlineNs(kCloseSeconds));
}

Handle Engine::AddVariable(bool carries) {
  const State::Lock lock(state_.get());
  return state_->graph.AddVariable(carries);
}

Status Engine::DeleteVariable(Handle variable) {
  const State::Lock lock(state_.get());
  return state_->graph.DeleteVariable(variable);
}

uint64_t Engine::Version(Handle variable) const {
  const State::Lock lock(state_.get());
  return state_->graph.version(variable);
}

bool Engine::IsUsed(Handle variable) const {
  const State::Lock lock(state_.get());
  return state_->graph.IsUsed(variable);
}

bool Engine::IsIdle(Handle variable) const {
  const State::Lock lock(state_.get());
  return state_->graph.IsIdle(variable);
}

FailurePtr Engine::TakeFailure(Handle variable) {
  const State::Lock lock(state_.get());
  return state_->TakeFailure(variable);
}

FailurePtr Engine::Inherited(Handle operation) const {
  const State::Lock lock(state_.get());
  return state_->graph.Inherited(operation);
}

Status Engine::Push(Task* task, std::span<const Handle> reads, std::span<const Handle> writes, How how) {
  State::Job job;
  {
    State::Lock lock(state_.get());
    if (state_->closed) return {StatusCode::kShutDown, "the engine is closed"};
    if (how.queue >= state_->queues.size()) {
      return InvalidArgumentError("there is no queue " + std::to_string(how.queue) + "; the engine has " +
                                  std::to_string(state_->queues.size()));
    }
    StatusOr<Handle> pushed = state_->graph.Push({task, how.priority, how.queue, how.always_runs}, reads, writes);
    if (!pushed.ok()) return pushed.status();
    state_->Reserve();
    const bool runs_here = state_->Dispatch(&lock.ended, how.at_once && !state_->is_naive ? *pushed : kNoHandle);
    if (runs_here) job = state_->Start(*pushed);
  }
  if (job.task != nullptr) state_->Run(job);
  if (state_->is_naive && running_for != state_.get()) state_->RunInline();
  return Status::Ok();
}

namespace {

Status EndedBeforeError() { return InvalidArgumentError("the operation has been completed before"); }

// Calls wait(until_ns), which returns true when the wait is over, in slices.
template <typename Wait>
bool WaitInSlices(int64_t deadline_ns, const Engine::GoOn& go_on, Wait&& wait) {
  while (!wait(std::min(deadline_ns, DeadlineNs(kSliceSeconds)))) {
    if (NowNs() >= deadline_ns || !go_on()) return false;
  }
  return true;
}

}  // namespace

Status Engine::Completer::Complete(Handle operation, FailurePtr failure) const {
  State::Lock lock(state_.get());
  if (!state_->IsUnderWay(operation)) return EndedBeforeError();
  State::Progress& at = state_->ProgressOf(operation);
  if (at.is_in_run) {
    at.has_ended = true;
    at.failure = std::move(failure);
  } else {
    state_->End(operation, std::move(failure), &lock.ended);
  }
  return Status::Ok();
}

Status Engine::Completer::RunAgain(Handle operation) const {
  State::Lock lock(state_.get());
  if (!state_->IsUnderWay(operation)) return EndedBeforeError();
  State::Progress& at = state_->ProgressOf(operation);
  at.runs_again = true;
  if (!at.is_in_run) state_->Requeue(operation, &lock.ended);
  return Status::Ok();
}

StatusOr<bool> Engine::Wait(std::span<const Handle> variables, int64_t deadline_ns, FailurePtr* failure,
                            const GoOn& go_on, Helper* helper) {
  if (running_for == state_.get()) return WaitWithinError();
  std::shared_ptr<Waiter> waiter;
  {
    State::Lock lock(state_.get());
    Graph& graph = state_->graph;
    const auto exists = [&](Handle each) HC_NO_THREAD_SAFETY_ANALYSIS { return graph.HasVariable(each); };
    if (!std::ranges::all_of(variables, exists)) return InvalidArgumentError("the variable has been deleted");
    const auto is_readable = [&](Handle each) HC_NO_THREAD_SAFETY_ANALYSIS { return graph.IsReadable(each); };
    if (!std::ranges::all_of(variables, is_readable)) {
      waiter = Waiter::Make();
      StatusOr<Handle> pushed = graph.Push({waiter.get(), 0, kWaitQueue, true}, variables, {});
      if (!pushed.ok()) return pushed.status();
      state_->Reserve();
    }
  }
  const auto wait = [&](int64_t until_ns) { return waiter->Wait(until_ns, helper); };
  if (waiter != nullptr && !WaitInSlices(deadline_ns, go_on, wait)) return false;
  State::Lock lock(state_.get());
  for (const Handle each : variables) {
    *failure = state_->TakeFailure(each);
    if (*failure != nullptr) break;
  }
  return true;
}

StatusOr<bool> Engine::WaitAll(int64_t deadline_ns, FailurePtr* failure, const GoOn& go_on) {
  if (running_for == state_.get()) return WaitWithinError();
  return WaitInSlices(deadline_ns, go_on, [&](int64_t until_ns) {
    State& state = *state_;
    State::Lock lock(&state);
    const auto is_idle = [&]() HC_NO_THREAD_SAFETY_ANALYSIS { return state.graph.pending() == 0; };
    if (!WaitUntil(&state.mutex, &state.changed, until_ns, is_idle)) return false;
    if (!state.untold.empty()) *failure = state.untold.front();
    state.untold.clear();
    state.graph.ForgetFailures();
    return true;
  });
}

bool Engine::IsInOperation() { return running_for != nullptr; }

std::vector<std::string> Engine::Close(int64_t deadline_ns) {
  std::vector<std::string> left;
  State& state = *state_;
  is_closed_ = true;
  {
    State::Lock lock(&state);
    state.closed = true;
    state.SkipQueued(&lock.ended);
    for (const auto& queue : state.queues) queue->filled.notify_all();
    state.changed.notify_all();
  }
  bool threads_returned = false;
  {
    const State::Lock lock(&state);
    // A thread of the engine that drops the last reference to it cannot wait for itself.
    const int64_t until_ns = running_for == &state ? 0 : deadline_ns;
    const auto is_still = [&]() HC_NO_THREAD_SAFETY_ANALYSIS { return state.running == 0 && state.serving == 0; };
    WaitUntil(&state.mutex, &state.changed, until_ns, is_still);
    threads_returned = state.serving == 0;
    state.graph.ForEachPending([&](Handle operation, bool) HC_NO_THREAD_SAFETY_ANALYSIS {
      if (state.HasStarted(operation)) left.push_back(static_cast<Task*>(state.graph.Find(operation)->task)->Name());
    });
  }
  for (NamedThread& thread : threads_) threads_returned ? thread.Join() : static_cast<void>(thread.Abandon());
  threads_.clear();
  return left;
}

Engine::Counters Engine::counters() const {
  const State::Lock lock(state_.get());
  Counters counters = state_->counters;
  counters.pushed = state_->graph.pushed();
  counters.allocations += state_->graph.allocations();
  counters.variables = state_->graph.variables();
  counters.pending = state_->graph.pending();
  return counters;
}

std::vector<Engine::Pending> Engine::PendingOperations() const {
  std::vector<Pending> found;
  const State::Lock lock(state_.get());
  state_->graph.ForEachPending([&](Handle operation, bool is_ready) HC_NO_THREAD_SAFETY_ANALYSIS {
    const Graph::Operation& what = *state_->graph.Find(operation);
    if (what.queue == kWaitQueue) return;
    const auto* const task = static_cast<Task*>(what.task);
    Pending::State at = is_ready ? Pending::State::kReady : Pending::State::kWaiting;
    const bool runs = state_->HasStarted(operation);
    if (runs) at = Pending::State::kRunning;
    const int64_t started_ns = runs ? state_->ProgressOf(operation).started_ns : 0;
    found.push_back({task->Name(), at, started_ns, state_->graph.SequenceOf(operation)});
  });
  std::ranges::sort(found, {}, &Pending::sequence);
  return found;
}

}  // namespace horocache::dag
