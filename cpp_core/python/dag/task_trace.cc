#include "python/dag/task_trace.h"

#include <pthread.h>

#include <array>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace horocache::python {
namespace {

struct Trace {
  Mutex mutex;
  std::shared_ptr<observe::Timeline> timeline HC_GUARDED_BY(mutex);
};

// Never destroyed, because threads of engines may outlive the interpreter.
Trace* trace = new Trace;

Trace& TheTrace() { return *trace; }

std::shared_ptr<observe::Timeline> TheTimeline() {
  const MutexLock lock(TheTrace().mutex);
  return TheTrace().timeline;
}

}  // namespace

void TraceTasksTo(std::shared_ptr<observe::Timeline> timeline) {
  const MutexLock lock(TheTrace().mutex);
  std::swap(TheTrace().timeline, timeline);
}

void TraceTasksNoMoreTo(const std::shared_ptr<observe::Timeline>& timeline) {
  const MutexLock lock(TheTrace().mutex);
  if (TheTrace().timeline == timeline) TheTrace().timeline = nullptr;
}

void TraceNoTasksOfParent() { trace = new Trace; }

bool TracesTasks() {
  const std::shared_ptr<observe::Timeline> timeline = TheTimeline();
  return timeline != nullptr && timeline->writes();
}

void TraceTask(const std::string& name, int64_t begin_ns) {
  const std::shared_ptr<observe::Timeline> timeline = TheTimeline();
  if (timeline == nullptr) return;
  std::array<char, 16> thread = {};
  pthread_getname_np(pthread_self(), thread.data(), thread.size());
  timeline->AddTask(thread.data(), name, begin_ns, NowNs());
}

}  // namespace horocache::python
