// Shortens the stacks of all threads, as Python's faulthandler writes them, to a summary for a report. Pure.
#pragma once

#include <string>
#include <string_view>

namespace horocache::observe {

// Returns "at train.py:40 in evaluate; innermost call first:" and a line for each call of the thread that the dump
// marks as the current one, then the other threads. The place after "at" is the innermost call outside `own_folder`,
// the folder of this library. Empty if the dump has no such thread.
std::string StackSummary(std::string_view dump, std::string_view own_folder);

}  // namespace horocache::observe
