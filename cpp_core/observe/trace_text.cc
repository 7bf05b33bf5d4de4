#include "observe/trace_text.h"

#include <algorithm>

#include "base/text.h"

namespace horocache::observe {
namespace {

constexpr int kRoundsRow = 0;

}  // namespace

TraceText::TraceText(const TimelineHeader& header) : rank_(header.rank) {
  AddName("process_name", kRoundsRow, "rank " + std::to_string(header.rank) + " on " + header.host);
  Begin('M', kRoundsRow, "process_sort_index");
  text_.Append(",\"args\":{\"sort_index\":", header.rank, "}}");
  AddName("thread_name", kRoundsRow, "rounds");
  Begin('M', kRoundsRow, "horocache");
  text_.Append(",\"args\":{\"version\":", JsonText(header.version), ",\"rank\":", header.rank);
  text_.Append(",\"size\":", header.size, ",\"host\":", JsonText(header.host));
  text_.Append(",\"clock_offset_ns\":", header.clock_offset_ns, ",\"clock_error_ns\":", header.clock_error_ns);
  text_.Append(",\"clock_measured_ns\":", header.clock_measured_ns);
  text_.Append(",\"start_time_since_epoch_in_micros\":", header.epoch_us, "}}");
}

template <typename... Name>
void TraceText::Begin(char kind, int row, const Name&... name) {
  if (!text_.empty()) text_.Append(",\n");
  text_.Append("{\"ph\":\"", kind, "\",\"name\":\"", name..., "\",\"pid\":", rank_, ",\"tid\":", row);
}

template <typename... Name>
void TraceText::BeginSpan(int row, const Span& span, const Name&... name) {
  Begin('X', row, name...);
  const Microseconds begin{span.begin_ns}, duration{std::max<int64_t>(span.end_ns - span.begin_ns, 0)};
  text_.Append(",\"cat\":\"", span.category, "\",\"ts\":", begin, ",\"dur\":", duration);
}

template <typename... Name>
void TraceText::AddSpan(int row, const Span& span, const Name&... name) {
  BeginSpan(row, span, name...);
  text_.Append('}');
}

void TraceText::BeginInstant(std::string_view name, int64_t at_ns) {
  Begin('i', kRoundsRow, name);
  text_.Append(",\"s\":\"t\",\"ts\":", Microseconds{at_ns});
}

void TraceText::AddName(std::string_view what, int row, std::string_view name) {
  Begin('M', row, what);
  text_.Append(",\"args\":{\"name\":", JsonText(name), "}}");
}

int TraceText::RowOf(uint32_t process_set, std::string_view name) {
  if (process_set == 0) return RowOf(name);
  // Tensors of different process sets may have the same name.
  return RowOf("set " + std::to_string(process_set) + ": " + std::string(name));
}

int TraceText::RowOf(std::string_view key) {
  if (const auto known = rows_.find(key); known != rows_.end()) return known->second;
  const int row = static_cast<int>(rows_.size()) + 1;
  rows_.emplace(key, row);
  AddName("thread_name", row, key);
  return row;
}

void TraceText::AppendError(std::string_view error) {
  if (!error.empty()) text_.Append(",\"error\":", JsonText(error));
}

void TraceText::AppendArgs(const OperationTrace& trace) {
  text_.Append(",\"args\":{\"process_set\":", trace.process_set, ",\"tensors\":", trace.tensors);
  text_.Append(",\"bytes\":", trace.bytes);
  if (trace.started_ns > 0) {
    text_.Append(",\"sequence\":", trace.sequence, ",\"item\":", trace.item, ",\"fused\":", trace.fused);
    text_.Append(",\"backend\":", JsonText(trace.backend));
  }
  AppendError(trace.error);
  text_.Append('}');
}

void TraceText::AddPhase(Phase phase, const OperationTrace& trace, int row, int64_t begin_ns, int64_t end_ns) {
  switch (phase) {
    case Phase::kWaitForData:
      return AddSpan(row, {"wait", begin_ns, end_ns}, "WAIT_FOR_DATA");
    case Phase::kPack:
      return AddSpan(row, {"copy", begin_ns, end_ns}, "MEMCPY_IN_FUSION_BUFFER");
    case Phase::kTransfer:
      return AddSpan(row, {"collective", begin_ns, end_ns}, UpperCase{trace.backend}, '_', UpperCase{trace.op});
    case Phase::kUnpack:
      return AddSpan(row, {"copy", begin_ns, end_ns}, "MEMCPY_OUT_FUSION_BUFFER");
  }
}

void TraceText::AddPhases(const OperationTrace& trace, int row) {
  AddSpan(row, {"queue", trace.agreed_ns, trace.started_ns}, "QUEUE");
  int64_t end_ns = trace.ended_ns;  // end of a phase: the start of the next phase that took place
  std::array<int64_t, kNumPhases> ends_ns;
  for (size_t phase = kNumPhases; phase-- > 0;) {
    ends_ns.at(phase) = end_ns;
    if (trace.phase_ns.at(phase) != 0) end_ns = trace.phase_ns.at(phase);
  }
  for (size_t phase = 0; phase < kNumPhases; ++phase) {
    const int64_t begin_ns = trace.phase_ns.at(phase);
    if (begin_ns != 0) AddPhase(static_cast<Phase>(phase), trace, row, begin_ns, ends_ns.at(phase));
  }
}

void TraceText::AddMessage(const OperationTrace& trace) {
  const bool sends = trace.op == "send";
  const int row = RowOf(trace.process_set,
                        std::string(trace.op) + (sends ? " to rank " : " from rank ") + std::to_string(trace.peer));
  BeginSpan(row, {"message", trace.submitted_ns, trace.ended_ns}, UpperCase{trace.op});
  text_.Append(",\"args\":{\"process_set\":", trace.process_set, ",\"peer\":", trace.peer);
  text_.Append(",\"tag\":", trace.tag, ",\"bytes\":", trace.bytes);
  if (trace.sequence > 0) text_.Append(",\"message\":", trace.sequence);
  AppendError(trace.error);
  text_.Append("}}");
}

void TraceText::AddOperation(const OperationTrace& trace) {
  if (trace.peer >= 0) return AddMessage(trace);
  const int row = RowOf(trace.process_set, trace.name);
  if (trace.first_ready_ns > 0) {
    AddSpan(row, {"wait", trace.first_ready_ns, trace.submitted_ns}, "WAIT_FOR_OTHER_TENSOR_DATA");
  }
  const bool agreed = trace.agreed_ns > 0;
  const Span negotiated{"control", trace.submitted_ns, agreed ? trace.agreed_ns : trace.ended_ns};
  BeginSpan(row, negotiated, "NEGOTIATE_", UpperCase{trace.op});
  if (agreed) {
    text_.Append('}');
    BeginSpan(row, {"operation", trace.agreed_ns, trace.ended_ns}, UpperCase{trace.op});
  }
  AppendArgs(trace);
  text_.Append('}');
  if (agreed && trace.started_ns > 0) AddPhases(trace, row);
}

void TraceText::AddTask(std::string_view thread, std::string_view name, int64_t begin_ns, int64_t end_ns) {
  const std::string quoted = JsonText(name);
  const std::string_view escaped = std::string_view(quoted).substr(1, quoted.size() - 2);
  AddSpan(RowOf(thread), {"task", begin_ns, end_ns}, escaped);
}

void TraceText::AddExchange(std::string_view layer, std::string_view name, std::string_view args, int64_t begin_ns,
                            int64_t end_ns) {
  BeginSpan(RowOf(layer), {"exchange", begin_ns, end_ns}, name);
  text_.Append(",\"args\":", args, '}');
}

void TraceText::AddRound(uint32_t process_set, uint64_t round, int64_t at_ns) {
  BeginInstant("CYCLE_START", at_ns);
  text_.Append(",\"args\":{\"process_set\":", process_set, ",\"round\":", round, "}}");
}

void TraceText::AddDropped(uint64_t records, int64_t at_ns) {
  BeginInstant("DROPPED", at_ns);
  text_.Append(",\"args\":{\"records\":", records, "}}");
}

}  // namespace horocache::observe
