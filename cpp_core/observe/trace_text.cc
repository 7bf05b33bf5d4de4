#include "observe/trace_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <concepts>
#include <utility>

#include "base/text.h"

namespace horocache::observe {
namespace {

constexpr int kRoundsRow = 0;

// All of this appends to one text: a job writes several events for each operation, and may have no core to spare.

void Append(std::string* out, std::string_view text) { *out += text; }

void Append(std::string* out, char c) { *out += c; }

template <std::integral T>
void Append(std::string* out, T value) {
  std::array<char, 20> digits;  // NOLINT: filled by to_chars
  *out += std::string_view(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr);
}

template <typename... Parts>
  requires(sizeof...(Parts) > 1)
void Append(std::string* out, const Parts&... parts) {
  (Append(out, parts), ...);
}

// Nanoseconds as the microseconds of the format, with all digits.
void AppendMicroseconds(std::string* out, int64_t ns) {
  const int64_t rest = ns % 1000;
  const auto digit = [rest](int64_t unit) { return static_cast<char>('0' + rest / unit % 10); };
  Append(out, ns / 1000, '.', digit(100), digit(10), digit(1));
}

std::string Upper(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return out;
}

std::string PhaseName(Phase phase, const OperationTrace& trace) {
  switch (phase) {
    case Phase::kWaitForData:
      return "WAIT_FOR_DATA";
    case Phase::kPack:
      return "MEMCPY_IN_FUSION_BUFFER";
    case Phase::kTransfer:
      return Upper(trace.backend) + "_" + Upper(trace.op);
    case Phase::kUnpack:
      return "MEMCPY_OUT_FUSION_BUFFER";
  }
  return "";
}

std::string_view PhaseCategory(Phase phase) {
  switch (phase) {
    case Phase::kWaitForData:
      return "wait";
    case Phase::kTransfer:
      return "collective";
    default:
      return "copy";
  }
}

void AppendError(std::string* out, std::string_view error) {
  if (!error.empty()) Append(out, ",\"error\":", JsonText(error));
}

void AppendArgs(std::string* out, const OperationTrace& trace) {
  Append(out, ",\"args\":{\"process_set\":", trace.process_set, ",\"tensors\":", trace.tensors);
  Append(out, ",\"bytes\":", trace.bytes);
  if (trace.started_ns > 0) {
    Append(out, ",\"sequence\":", trace.sequence, ",\"item\":", trace.item, ",\"fused\":", trace.fused);
    Append(out, ",\"backend\":", JsonText(trace.backend));
  }
  AppendError(out, trace.error);
  *out += '}';
}

}  // namespace

TraceText::TraceText(const TimelineHeader& header) : rank_(header.rank) {
  AddName("process_name", kRoundsRow, "rank " + std::to_string(header.rank) + " on " + header.host);
  Begin('M', "process_sort_index", kRoundsRow);
  Append(&text_, ",\"args\":{\"sort_index\":", header.rank, "}}");
  AddName("thread_name", kRoundsRow, "rounds");
  Begin('M', "horocache", kRoundsRow);
  Append(&text_, ",\"args\":{\"version\":", JsonText(header.version), ",\"rank\":", header.rank);
  Append(&text_, ",\"size\":", header.size, ",\"host\":", JsonText(header.host));
  Append(&text_, ",\"clock_offset_ns\":", header.clock_offset_ns, ",\"clock_error_ns\":", header.clock_error_ns);
  Append(&text_, ",\"clock_measured_ns\":", header.clock_measured_ns);
  Append(&text_, ",\"start_time_since_epoch_in_micros\":", header.epoch_us, "}}");
}

void TraceText::Begin(char kind, std::string_view name, int row) {
  if (!text_.empty()) text_ += ",\n";
  Append(&text_, "{\"ph\":\"", kind, "\",\"name\":\"", name, "\",\"pid\":", rank_, ",\"tid\":", row);
}

void TraceText::AddName(std::string_view what, int row, std::string_view name) {
  Begin('M', what, row);
  Append(&text_, ",\"args\":{\"name\":", JsonText(name), "}}");
}

void TraceText::BeginSpan(std::string_view name, int row, const Span& span) {
  Begin('X', name, row);
  Append(&text_, ",\"cat\":\"", span.category, "\",\"ts\":");
  AppendMicroseconds(&text_, span.begin_ns);
  text_ += ",\"dur\":";
  AppendMicroseconds(&text_, std::max<int64_t>(span.end_ns - span.begin_ns, 0));
}

void TraceText::AddSpan(std::string_view name, int row, const Span& span) {
  BeginSpan(name, row, span);
  text_ += '}';
}

void TraceText::BeginInstant(std::string_view name, int64_t at_ns) {
  Begin('i', name, kRoundsRow);
  text_ += ",\"s\":\"t\",\"ts\":";
  AppendMicroseconds(&text_, at_ns);
}

int TraceText::RowOf(uint32_t process_set, std::string_view name) {
  if (process_set == 0) return RowOf(name);
  // Two sets may have tensors of one name.
  return RowOf("set " + std::to_string(process_set) + ": " + std::string(name));
}

int TraceText::RowOf(std::string_view key) {
  if (const auto known = rows_.find(key); known != rows_.end()) return known->second;
  const int row = static_cast<int>(rows_.size()) + 1;
  rows_.emplace(key, row);
  AddName("thread_name", row, key);
  return row;
}

void TraceText::AddPhases(const OperationTrace& trace, int row) {
  AddSpan("QUEUE", row, {"queue", trace.agreed_ns, trace.started_ns});
  for (int phase = 0; phase < kNumPhases; ++phase) {
    const int64_t begin_ns = trace.phase_ns[static_cast<size_t>(phase)];
    if (begin_ns == 0) continue;
    int64_t end_ns = trace.ended_ns;  // or the begin of the next phase that there was
    for (int next = kNumPhases - 1; next > phase; --next) {
      if (trace.phase_ns[static_cast<size_t>(next)] != 0) end_ns = trace.phase_ns[static_cast<size_t>(next)];
    }
    const auto which = static_cast<Phase>(phase);
    AddSpan(PhaseName(which, trace), row, {PhaseCategory(which), begin_ns, end_ns});
  }
}

void TraceText::AddMessage(const OperationTrace& trace) {
  const bool sends = trace.op == "send";
  const int row = RowOf(trace.process_set,
                        std::string(trace.op) + (sends ? " to rank " : " from rank ") + std::to_string(trace.peer));
  BeginSpan(Upper(trace.op), row, {"message", trace.submitted_ns, trace.ended_ns});
  Append(&text_, ",\"args\":{\"process_set\":", trace.process_set, ",\"peer\":", trace.peer);
  Append(&text_, ",\"tag\":", trace.tag, ",\"bytes\":", trace.bytes);
  if (trace.sequence > 0) Append(&text_, ",\"message\":", trace.sequence);
  AppendError(&text_, trace.error);
  text_ += "}}";
}

void TraceText::AddOperation(const OperationTrace& trace) {
  if (trace.peer >= 0) return AddMessage(trace);
  const int row = RowOf(trace.process_set, trace.name);
  const std::string op = Upper(trace.op);
  if (trace.first_ready_ns > 0) {
    AddSpan("WAIT_FOR_OTHER_TENSOR_DATA", row, {"wait", trace.first_ready_ns, trace.submitted_ns});
  }
  const bool agreed = trace.agreed_ns > 0;
  BeginSpan("NEGOTIATE_" + op, row, {"control", trace.submitted_ns, agreed ? trace.agreed_ns : trace.ended_ns});
  if (agreed) {
    text_ += '}';
    BeginSpan(op, row, {"operation", trace.agreed_ns, trace.ended_ns});
  }
  AppendArgs(&text_, trace);
  text_ += '}';
  if (agreed && trace.started_ns > 0) AddPhases(trace, row);
}

void TraceText::AddRound(uint32_t process_set, uint64_t round, int64_t at_ns) {
  BeginInstant("CYCLE_START", at_ns);
  Append(&text_, ",\"args\":{\"process_set\":", process_set, ",\"round\":", round, "}}");
}

void TraceText::AddDropped(uint64_t records, int64_t at_ns) {
  BeginInstant("DROPPED", at_ns);
  Append(&text_, ",\"args\":{\"records\":", records, "}}");
}

const std::string& TraceText::Take() {
  std::swap(taken_, text_);
  text_.clear();
  return taken_;
}

}  // namespace horocache::observe
