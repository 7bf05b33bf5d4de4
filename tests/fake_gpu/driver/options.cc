#include "driver/options.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <vector>

#include "driver/driver.h"

namespace fake_gpu {
namespace {

struct Fault {
  std::string function;
  uint64_t nth = 0;
  Code code = 0;
  int rank = -1;
  uint64_t seen = 0;
};

// Faults, counts and broken rules; lives until the process has ended.
struct Book {
  std::mutex mutex;
  std::map<std::string, uint64_t, std::less<>> calls;
  std::vector<Fault> faults;
  std::string first_broken_rule;
  uint64_t broken_rules = 0;
};

[[noreturn]] void Refuse(const std::string& text) {
  std::fprintf(stderr, "fake GPU: %s\n", text.c_str());
  std::_Exit(97);
}

const char* Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<Fault> ParseFaults(const std::string& plan) {
  std::vector<Fault> faults;
  std::istringstream entries(plan);
  for (std::string entry; std::getline(entries, entry, ',');) {
    Fault fault;
    if (const size_t at = entry.find('@'); at != std::string::npos) {
      fault.rank = std::atoi(entry.c_str() + at + 1);
      entry.resize(at);
    }
    std::istringstream fields(entry);
    std::string nth;
    std::string code;
    if (!std::getline(fields, fault.function, ':') || !std::getline(fields, nth, ':') ||
        !std::getline(fields, code, ':') || std::atoll(nth.c_str()) < 1)
      Refuse("FAKE_GPU_FAULTS: " + entry + " is not function:nth:code");
    fault.nth = static_cast<uint64_t>(std::atoll(nth.c_str()));
    fault.code = code == "hang" ? kHang : code == "late" ? kLate : std::atoi(code.c_str());
    faults.push_back(fault);
  }
  return faults;
}

Book& book() {
  static Book* const book = [] {
    auto* made = new Book;
    made->faults = ParseFaults(Variable("FAKE_GPU_FAULTS"));
    return made;
  }();
  return *book;
}

std::atomic<bool> exiting = false;

// Destroyed with the library's static objects, when exit has begun.
struct AtExit {
  ~AtExit() {
    exiting = true;
    if (!options().ledger.empty()) WriteLedger(options().ledger);
  }
} at_exit;

}  // namespace

int64_t Number(const char* variable, int64_t otherwise) {
  const char* const text = Variable(variable);
  if (*text == '\0') return otherwise;
  char* end = nullptr;
  const int64_t number = std::strtoll(text, &end, 10);
  if (*end != '\0') Refuse(std::string(variable) + "=" + text + " is not a number");
  return number;
}

const Options& options() {
  static const Options* const options = [] {
    auto* made = new Options;
    made->devices = static_cast<int>(Number("FAKE_GPU_DEVICES", made->devices));
    made->memory = static_cast<uint64_t>(Number("FAKE_GPU_MEMORY", static_cast<int64_t>(made->memory)));
    made->stepper = *Variable("FAKE_GPU_SEED") != '\0';
    made->seed = static_cast<uint64_t>(Number("FAKE_GPU_SEED", 0));
    made->delay_us = Number("FAKE_GPU_DELAY_US", 0);
    made->strict = Number("FAKE_GPU_STRICT", 1) != 0;
    made->ledger = Variable("FAKE_GPU_LEDGER");
    made->version = static_cast<int>(Number("FAKE_CUDA_VERSION", made->version));
    return made;
  }();
  return *options;
}

void BreakRule(const std::string& text) {
  {
    const std::lock_guard lock(book().mutex);
    if (book().broken_rules++ == 0) book().first_broken_rule = text;
  }
  std::fprintf(stderr, "fake GPU: broken rule: %s (seed %llu)\n", text.c_str(),
               static_cast<unsigned long long>(options().seed));
  if (options().strict) std::abort();
}

std::optional<Code> PlannedFault(std::string_view function, int rank) {
  if (book().faults.empty()) return std::nullopt;
  const std::lock_guard lock(book().mutex);
  std::optional<Code> due;
  for (Fault& fault : book().faults) {
    if (fault.function != function || (fault.rank >= 0 && rank != fault.rank)) continue;
    if (++fault.seen == fault.nth) due = fault.code;
  }
  return due;
}

void CountCall(const char* function) {
  const std::lock_guard lock(book().mutex);
  const auto found = book().calls.find(function);
  if (found != book().calls.end()) {
    ++found->second;
  } else {
    book().calls.emplace(function, 1);
  }
}

bool Exiting() { return exiting; }

// ---- for tests

// How often a function was called.
FAKE_GPU_API uint64_t fake_gpu_calls(const char* function) {
  const std::lock_guard lock(book().mutex);
  const auto found = book().calls.find(function);
  return found == book().calls.end() ? 0 : found->second;
}

// How often rules were broken; the first one's text, if there is room.
FAKE_GPU_API uint64_t fake_gpu_broken_rules(char* text, size_t size) {
  const std::lock_guard lock(book().mutex);
  if (text != nullptr && size > 0) std::snprintf(text, size, "%s", book().first_broken_rule.c_str());
  return book().broken_rules;
}

}  // namespace fake_gpu
