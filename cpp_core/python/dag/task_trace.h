// The timeline that shows the functions which engines run: that of this process's runtime.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "observe/timeline.h"

namespace horocache::python {

// Sets the timeline.
void TraceTasksTo(std::shared_ptr<observe::Timeline> timeline);
// Sets none, if it is this one.
void TraceTasksNoMoreTo(const std::shared_ptr<observe::Timeline>& timeline);
// For the child of a fork: there is none.
void TraceNoTasksOfParent();
// True if there is one that is written.
bool TracesTasks();
// Adds a function that the calling thread has run since `begin_ns`.
void TraceTask(const std::string& name, int64_t begin_ns);

}  // namespace horocache::python
