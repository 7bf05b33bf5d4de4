// Runs the operations of a Graph on threads, each as soon as it is ready.
//
// Operations have queues, such as one for computation and one for copies, with threads of their own. Of the ready
// operations of a queue, the one of the highest priority runs first; of equal ones the first that was pushed. An
// operation may end later than its function returns, by Complete from any thread. An engine without threads is the
// naive one: Push runs the operation, and returns when it has ended.
//
// Threads: any. Tasks are called without any lock of the engine.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread.h"
#include "dag/graph.h"

namespace horocache::dag {

// How a function of an operation returns: the operation has ended, with or without a failure; or it goes on by
// Engine::Complete or Engine::RunAgain, which may be called before the function has returned.
struct Outcome {
  bool ended = true;
  FailurePtr failure;
};

// The action of an operation. The engine does not own it. Ended is the last call, after Run has returned; a wait for
// the operation may return before it.
class Task {
 public:
  Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // `inherited` is the failure of something that the operation uses; null unless How::always_runs.
  virtual Outcome Run(Handle operation, const FailurePtr& inherited) = 0;
  // The operation has ended. `ran` is false if Run was not called, because of the failure of something that it uses, or
  // because the engine was closed.
  virtual void Ended(const FailurePtr& failure, bool ran) = 0;
  virtual std::string Name() const = 0;

 protected:
  ~Task() = default;
};

class Engine {
  struct State;  // outlives the engine if a thread hangs in a task, or something else completes an operation

 public:
  struct Options {
    std::vector<int> threads = {1};  // of each queue; empty: the naive engine
    std::string name = "hc-dag";     // of the threads, with a number
  };
  // See Graph::Operation.
  struct How {
    int32_t priority = 0;
    uint8_t queue = 0;
    bool always_runs = false;
    bool at_once = false;  // runs within Push if it is ready then; for functions that are short and do not wait
  };
  struct Counters {
    uint64_t pushed = 0, ended = 0, failed = 0, skipped = 0;
    uint64_t allocations = 0;  // growths of tables
    uint64_t contended = 0;    // locks that another thread held
    size_t variables = 0, pending = 0;
  };
  struct Pending {
    std::string name;
    enum class State { kWaiting, kReady, kRunning } state = State::kWaiting;
    int64_t started_ns = 0;  // kRunning: of the steady clock
    uint64_t sequence = 0;
  };

  // A waiting thread may do something useful meanwhile, such as driving what it waits for.
  class Helper {
   public:
    virtual ~Helper() = default;
    // Returns true after a while, at the latest when done() or at the deadline; false at once, if it has nothing to do.
    virtual bool Help(const std::function<bool()>& done, int64_t deadline_ns) = 0;
    // done() has become true. Any thread.
    virtual void Wake() = 0;
  };
  using GoOn = std::function<bool()>;
  static bool Always() { return true; }

  // Throws std::system_error if a thread cannot be made.
  explicit Engine(Options options);
  // As Close with a limit of some seconds.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Handle AddVariable(bool carries = true);  // see Graph
  Status DeleteVariable(Handle variable);
  uint64_t Version(Handle variable) const;
  // True if nothing that has been pushed uses the variable any more, and it has no failure; false if it is gone.
  bool IsIdle(Handle variable) const;
  bool IsUsed(Handle variable) const;  // see Graph
  // Removes and returns the failure of a variable; null if it has none.
  FailurePtr TakeFailure(Handle variable);
  // The failure that an operation which always runs, and has started, inherits.
  FailurePtr Inherited(Handle operation) const;

  // Adds an operation; `task` stays valid until its Ended. See Graph::Push; with an error the task is not taken.
  Status Push(Task* task, std::span<const Handle> reads, std::span<const Handle> writes, How how);
  // Completes operations, also when the engine is gone.
  class Completer {
   public:
    // Ends an operation whose Run returned ended = false. kInvalidArgument if it has ended before.
    Status Complete(Handle operation, FailurePtr failure) const;
    // Has Run called again for such an operation, on a thread of its queue. kInvalidArgument as above.
    Status RunAgain(Handle operation) const;

   private:
    friend class Engine;
    explicit Completer(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
  };
  Completer completer() const { return Completer(state_); }
  Status Complete(Handle operation, FailurePtr failure) { return completer().Complete(operation, std::move(failure)); }
  Status RunAgain(Handle operation) { return completer().RunAgain(operation); }

  // Waits until the operations that write the variables, of those pushed so far, have ended. Returns the failure of the
  // first that has one, which it then no longer has, in *failure. False if the deadline has passed or go_on(), which is
  // called several times a second without a lock, returned false. kInvalidArgument within an operation, where the wait
  // could be for the operation itself.
  StatusOr<bool> Wait(std::span<const Handle> variables, int64_t deadline_ns, FailurePtr* failure,
                      const GoOn& go_on = Always, Helper* helper = nullptr);
  // The same for all operations. *failure is the first one that no wait has returned; all variables lose theirs.
  StatusOr<bool> WaitAll(int64_t deadline_ns, FailurePtr* failure, const GoOn& go_on = Always);

  // True if the calling thread runs an operation of an engine.
  static bool IsInOperation();

  // Ends what has not started with kShutDown, and waits for what runs, but not longer than until the deadline, and not
  // within an operation. Returns the names of the operations that still run; the threads are then left to themselves.
  std::vector<std::string> Close(int64_t deadline_ns);

  Counters counters() const;
  std::vector<Pending> PendingOperations() const;

 private:
  std::shared_ptr<State> state_;
  std::vector<NamedThread> threads_;
  bool is_closed_ = false;
};

}  // namespace horocache::dag
