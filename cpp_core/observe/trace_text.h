// Operations as events of Chrome's trace format. Pure: no clock, no file.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "control/string_map.h"
#include "observe/text_builder.h"

namespace horocache::observe {

// What an operation of the data plane does at the moment.
enum class Phase : uint8_t { kWaitForData, kPack, kTransfer, kUnpack };
inline constexpr int kNumPhases = 4;

// One operation from its submission to its end. Times in ns of the steady clock; 0: it did not come so far.
struct OperationTrace {
  std::string_view name;     // the tensor's, or the group's
  std::string_view op;       // "allreduce"
  std::string_view backend;  // "shm"; empty if nothing ran
  std::string_view error;    // empty if it ended well
  uint32_t process_set = 0;
  int32_t tensors = 1;
  int64_t bytes = 0;
  // Which one it is, equal on all ranks: the number of the plan in the process set, and the place in it. Of a message:
  // its number among those of its sender.
  uint64_t sequence = 0;
  uint32_t item = 0;
  uint32_t fused = 0;          // operations in the plan
  int32_t peer = -1;           // of a message: the other rank; below 0: it is none
  int32_t tag = 0;             // of a message
  int64_t first_ready_ns = 0;  // of a group: when its first tensor was there
  int64_t submitted_ns = 0;
  int64_t agreed_ns = 0;
  int64_t started_ns = 0;
  std::array<int64_t, kNumPhases> phase_ns{};  // when each phase began
  int64_t ended_ns = 0;
};

// Who writes, and how its clock differs from that of rank 0's host.
struct TimelineHeader {
  std::string version;
  std::string host;
  int rank = 0;
  int size = 1;
  int64_t clock_offset_ns = 0;  // to be added to this host's times
  int64_t clock_error_ns = 0;   // at most so far off, when it was measured
  int64_t clock_measured_ns = 0;
  int64_t epoch_us = 0;  // since 1970, when the clock of the times was 0
};

class TraceText {
 public:
  explicit TraceText(const TimelineHeader& header);  // which comes first

  void AddOperation(const OperationTrace& trace);
  void AddRound(uint32_t process_set, uint64_t round, int64_t at_ns);
  void AddDropped(uint64_t records, int64_t at_ns);
  bool empty() const { return text_.empty(); }
  // The events since the last call, with commas between them, in exchange for the memory of `into`.
  void Take(std::string* into) { text_.Swap(into); }

 private:
  struct Span {
    std::string_view category;
    int64_t begin_ns, end_ns;
  };

  // The number of a tensor's row, which appears with its first operation.
  int RowOf(uint32_t process_set, std::string_view name);
  int RowOf(std::string_view key);
  void AddMessage(const OperationTrace& trace);
  void AddPhases(const OperationTrace& trace, int row);
  void AddPhase(Phase phase, const OperationTrace& trace, int row, int64_t begin_ns, int64_t end_ns);
  void AddName(std::string_view what, int row, std::string_view name);
  // Names are words of ours, in one part or more.
  template <typename... Name>
  void AddSpan(int row, const Span& span, const Name&... name);
  // The caller adds what else there is, and the brace that ends it.
  template <typename... Name>
  void Begin(char kind, int row, const Name&... name);
  template <typename... Name>
  void BeginSpan(int row, const Span& span, const Name&... name);
  void BeginInstant(std::string_view name, int64_t at_ns);
  void AppendArgs(const OperationTrace& trace);
  void AppendError(std::string_view error);

  const int rank_;
  control::StringMap<int> rows_;
  TextBuilder text_;
};

}  // namespace horocache::observe
