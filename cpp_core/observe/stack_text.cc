#include "observe/stack_text.h"

#include <algorithm>
#include <vector>

#include "base/text.h"

namespace horocache::observe {
namespace {

// Limits of a summary: calls of the current thread, other threads, calls of each other thread.
constexpr size_t kMostCalls = 24, kMostOtherThreads = 6, kMostOtherCalls = 4;

struct Call {
  std::string file, line, function;
};
struct Thread {
  bool current = false;
  std::vector<Call> calls;  // innermost first
};

// Parses a line such as `  File "train.py", line 3 in f`; false for other lines.
bool ParseCall(std::string_view text, Call* call) {
  constexpr std::string_view kFile = "  File \"", kLine = "\", line ", kIn = " in ";
  const size_t line = text.rfind(kLine), in = line == text.npos ? line : text.find(kIn, line);
  if (!text.starts_with(kFile) || in == text.npos) return false;
  call->file = text.substr(kFile.size(), line - kFile.size());
  call->line = text.substr(line + kLine.size(), in - line - kLine.size());
  call->function = text.substr(in + kIn.size());
  return true;
}

std::vector<Thread> ParseThreads(std::string_view dump) {
  std::vector<Thread> threads;
  for (const std::string& line : Split(dump, '\n')) {
    Call call;
    if (line.starts_with("Current thread ") || line.starts_with("Thread ")) {
      threads.push_back({line.starts_with("Current"), {}});
    } else if (!threads.empty() && ParseCall(line, &call)) {
      threads.back().calls.push_back(std::move(call));
    }
  }
  return threads;
}

std::string PlaceText(const Call& call, bool short_file) {
  const std::string file = short_file ? call.file.substr(call.file.rfind('/') + 1) : call.file;
  return Printable(file + ":" + call.line + " in " + call.function);
}

std::string CallsText(const Thread& thread, size_t most) {
  std::string text;
  for (size_t i = 0; i < std::min(thread.calls.size(), most); ++i) text += "\n    " + PlaceText(thread.calls[i], false);
  if (thread.calls.size() > most) text += "\n    and " + std::to_string(thread.calls.size() - most) + " calls more";
  return text;
}

}  // namespace

std::string StackSummary(std::string_view dump, std::string_view own_folder) {
  const std::vector<Thread> threads = ParseThreads(dump);
  const auto current = std::ranges::find(threads, true, &Thread::current);
  if (current == threads.end() || current->calls.empty()) return "";
  const auto is_foreign = [&](const Call& call) { return own_folder.empty() || !call.file.starts_with(own_folder); };
  const auto place = std::ranges::find_if(current->calls, is_foreign);
  const Call& call = place == current->calls.end() ? current->calls.front() : *place;
  std::string text = "at " + PlaceText(call, true) + "; innermost call first:" + CallsText(*current, kMostCalls);
  size_t others = 0;
  for (const Thread& thread : threads) {
    if (thread.current || thread.calls.empty() || others == kMostOtherThreads) continue;
    ++others;
    text += "\n  another thread:" + CallsText(thread, kMostOtherCalls);
  }
  return text;
}

}  // namespace horocache::observe
