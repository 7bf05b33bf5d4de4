// Operations as events of Chrome's trace format. Pure: no clock, no file.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "control/string_map.h"
#include "observe/text_builder.h"

namespace horocache::observe {

// A phase of an operation of the data plane.
enum class Phase : uint8_t { kWaitForData, kPack, kTransfer, kUnpack };
inline constexpr int kNumPhases = 4;

// One operation, from its submission to its end. Times are in ns of the steady clock; 0: the operation did not reach
// that point.
struct OperationTrace {
  std::string_view name;     // of the tensor, or of the group
  std::string_view op;       // such as "allreduce"
  std::string_view backend;  // such as "shm"; empty if nothing ran
  std::string_view error;    // empty if the operation succeeded
  // For the operation log alone. Empty: the operation has none, or nothing ran.
  std::string_view reduce_op, dtype, algorithm, chosen_by, layers;
  uint32_t process_set = 0;
  int32_t tensors = 1;
  int64_t bytes = 0;
  // `sequence` and `item` identify the operation, and are equal on all ranks: the number of its plan in the process
  // set, and its place in the plan. The `sequence` of a message is its number among the messages of its sender.
  uint64_t sequence = 0;
  uint32_t item = 0;
  uint32_t fused = 0;          // operations in the plan
  int32_t peer = -1;           // of a message: the other rank; -1: not a message
  int32_t tag = 0;             // of a message
  int64_t first_ready_ns = 0;  // of a group: when its first tensor was ready
  int64_t submitted_ns = 0;
  int64_t agreed_ns = 0;
  int64_t started_ns = 0;
  std::array<int64_t, kNumPhases> phase_ns{};  // start of each phase; 0: it did not take place
  int64_t ended_ns = 0;
};

// The rank that writes the file, and the offset of its clock from that of rank 0's host.
struct TimelineHeader {
  std::string version;
  std::string host;
  int rank = 0;
  int size = 1;
  int64_t clock_offset_ns = 0;    // add it to a time of this host to get the time of rank 0's host
  int64_t clock_error_ns = 0;     // bounds the error of the offset when it was measured
  int64_t clock_measured_ns = 0;  // when the offset was measured, by this host's clock
  int64_t epoch_us = 0;           // when the steady clock was 0, in us since 1970
};

class TraceText {
 public:
  explicit TraceText(const TimelineHeader& header);  // the header is the first text

  void AddOperation(const OperationTrace& trace);
  // A function that a thread has run, such as an operation of a dependency engine; the thread has a row.
  void AddTask(std::string_view thread, std::string_view name, int64_t begin_ns, int64_t end_ns);
  // One exchange of a layer of experts; each layer has a row. `args` is an object in JSON: the rows that were sent,
  // served and dropped. The name is not escaped.
  void AddExchange(std::string_view layer, std::string_view name, std::string_view args, int64_t begin_ns,
                   int64_t end_ns);
  void AddRound(uint32_t process_set, uint64_t round, int64_t at_ns);
  void AddDropped(uint64_t records, int64_t at_ns);
  bool empty() const { return text_.empty(); }
  // Returns the events since the last call, separated by commas, in exchange for the memory of `into`.
  void Take(std::string* into) { text_.Swap(into); }

 private:
  struct Span {
    std::string_view category;
    int64_t begin_ns, end_ns;
  };

  // The number of a tensor's row; the row is created at the tensor's first operation.
  int RowOf(uint32_t process_set, std::string_view name);
  int RowOf(std::string_view key);
  void AddMessage(const OperationTrace& trace);
  void AddPhases(const OperationTrace& trace, int row);
  void AddPhase(Phase phase, const OperationTrace& trace, int row, int64_t begin_ns, int64_t end_ns);
  void AddName(std::string_view what, int row, std::string_view name);
  // Adds a span. The name comes from horocache and not from the user, so it is not escaped; it has one or more parts.
  template <typename... Name>
  void AddSpan(int row, const Span& span, const Name&... name);
  // Begins an event; the caller adds further members and the closing brace.
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
