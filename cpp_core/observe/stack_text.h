// What Python's faulthandler writes about the stacks of all threads, made short enough for a report. Pure.
#pragma once

#include <string>
#include <string_view>

namespace horocache::observe {

// "at train.py:40 in evaluate; innermost call first:" and a line for each call of the thread that the dump calls the
// current one, then the other threads. The place is the innermost call outside `own_folder`, which holds this library.
// Empty if the dump has no such thread.
std::string StackSummary(std::string_view dump, std::string_view own_folder);

}  // namespace horocache::observe
