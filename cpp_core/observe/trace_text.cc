#include "observe/trace_text.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/text.h"

namespace horocache::observe {
namespace {

constexpr int kRoundsRow = 0;

// Nanoseconds as the microseconds of the format, with all digits.
std::string Microseconds(int64_t ns) {
  const std::string digits = std::to_string(1000 + ns % 1000);
  return std::to_string(ns / 1000) + "." + digits.substr(digits.size() - 3);
}

std::string Upper(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return out;
}

std::string Number(const char* key, int64_t value) { return "\"" + std::string(key) + "\":" + std::to_string(value); }

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

std::string ArgsOf(const OperationTrace& trace) {
  std::string args = "{" + Number("process_set", trace.process_set) + "," + Number("tensors", trace.tensors) + "," +
                     Number("bytes", trace.bytes);
  if (trace.started_ns > 0) {
    args += "," + Number("sequence", static_cast<int64_t>(trace.sequence)) + "," + Number("item", trace.item) + "," +
            Number("fused", trace.fused) + ",\"backend\":" + JsonText(trace.backend);
  }
  if (!trace.error.empty()) args += ",\"error\":" + JsonText(trace.error);
  return args + "}";
}

}  // namespace

TraceText::TraceText(const TimelineHeader& header) : rank_(header.rank) {
  AddMetadata("process_name", kRoundsRow,
              "{\"name\":" + JsonText("rank " + std::to_string(header.rank) + " on " + header.host) + "}");
  AddMetadata("process_sort_index", kRoundsRow, "{" + Number("sort_index", header.rank) + "}");
  AddMetadata("thread_name", kRoundsRow, "{\"name\":\"rounds\"}");
  AddMetadata("horocache", kRoundsRow,
              "{\"version\":" + JsonText(header.version) + "," + Number("rank", header.rank) + "," +
                  Number("size", header.size) + ",\"host\":" + JsonText(header.host) + "," +
                  Number("clock_offset_ns", header.clock_offset_ns) + "," +
                  Number("clock_error_ns", header.clock_error_ns) + "," +
                  Number("clock_measured_ns", header.clock_measured_ns) + "}");
}

void TraceText::Begin(char kind, std::string_view name, int row) {
  if (!text_.empty()) text_ += ",\n";
  text_ += "{\"ph\":\"";
  text_ += kind;
  text_ += "\",\"name\":\"";
  text_ += name;
  text_ += "\",\"pid\":" + std::to_string(rank_) + ",\"tid\":" + std::to_string(row);
}

void TraceText::AddMetadata(const char* name, int row, const std::string& args) {
  Begin('M', name, row);
  text_ += ",\"args\":" + args + "}";
}

void TraceText::AddSpan(const std::string& name, int row, const Span& span, const std::string& args) {
  Begin('X', name, row);
  text_ += ",\"cat\":\"";
  text_ += span.category;
  text_ += "\",\"ts\":" + Microseconds(span.begin_ns) +
           ",\"dur\":" + Microseconds(std::max<int64_t>(span.end_ns - span.begin_ns, 0));
  if (!args.empty()) text_ += ",\"args\":" + args;
  text_ += "}";
}

void TraceText::AddInstant(const char* name, int64_t at_ns, const std::string& args) {
  Begin('i', name, kRoundsRow);
  text_ += ",\"s\":\"t\",\"ts\":" + Microseconds(at_ns) + ",\"args\":" + args + "}";
}

int TraceText::RowOf(uint32_t process_set, std::string_view name) {
  // Two sets may have tensors of one name.
  const std::string key =
      process_set == 0 ? std::string(name) : "set " + std::to_string(process_set) + ": " + std::string(name);
  const auto [row, is_new] = rows_.try_emplace(key, static_cast<int>(rows_.size()) + 1);
  if (is_new) AddMetadata("thread_name", row->second, "{\"name\":" + JsonText(key) + "}");
  return row->second;
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
  std::string args = "{" + Number("process_set", trace.process_set) + "," + Number("peer", trace.peer) + "," +
                     Number("tag", trace.tag) + "," + Number("bytes", trace.bytes);
  if (trace.sequence > 0) args += "," + Number("message", static_cast<int64_t>(trace.sequence));
  if (!trace.error.empty()) args += ",\"error\":" + JsonText(trace.error);
  const bool sends = trace.op == "send";
  const int row = RowOf(trace.process_set,
                        std::string(trace.op) + (sends ? " to rank " : " from rank ") + std::to_string(trace.peer));
  AddSpan(Upper(trace.op), row, {"message", trace.submitted_ns, trace.ended_ns}, args + "}");
}

void TraceText::AddOperation(const OperationTrace& trace) {
  if (trace.peer >= 0) return AddMessage(trace);
  const int row = RowOf(trace.process_set, trace.name);
  const std::string op = Upper(trace.op), args = ArgsOf(trace);
  if (trace.first_ready_ns > 0) {
    AddSpan("WAIT_FOR_OTHER_TENSOR_DATA", row, {"wait", trace.first_ready_ns, trace.submitted_ns});
  }
  const bool agreed = trace.agreed_ns > 0;
  AddSpan("NEGOTIATE_" + op, row, {"control", trace.submitted_ns, agreed ? trace.agreed_ns : trace.ended_ns},
          agreed ? "" : args);
  if (!agreed) return;
  AddSpan(op, row, {"operation", trace.agreed_ns, trace.ended_ns}, args);
  if (trace.started_ns > 0) AddPhases(trace, row);
}

void TraceText::AddRound(uint32_t process_set, uint64_t round, int64_t at_ns) {
  AddInstant("CYCLE_START", at_ns,
             "{" + Number("process_set", process_set) + "," + Number("round", static_cast<int64_t>(round)) + "}");
}

void TraceText::AddDropped(uint64_t records, int64_t at_ns) {
  AddInstant("DROPPED", at_ns, "{" + Number("records", static_cast<int64_t>(records)) + "}");
}

std::string TraceText::Take() { return std::exchange(text_, {}); }

}  // namespace horocache::observe
