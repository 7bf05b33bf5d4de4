#include "runtime/diagnostics/metrics.h"

#include "base/allocations.h"

namespace horocache::runtime {
namespace {

template <typename Counters>
void AddIndexed(const char* name, const Counters& counters, std::map<std::string, uint64_t>* out) {
  for (size_t i = 0; i < counters.size(); ++i) {
    if (counters[i].Get() != 0) (*out)[name + std::string(".") + std::to_string(i)] = counters[i].Get();
  }
}

// Only if there were any.
void AddExchanges(const moe::ExchangeCounters& exchanges, std::map<std::string, uint64_t>* out) {
  if (exchanges.rounds == 0) return;
  (*out)["moe_rounds"] = exchanges.rounds;
  (*out)["moe_failed_rounds"] = exchanges.failed_rounds;
  (*out)["moe_batches_sent"] = exchanges.batches_sent;
  (*out)["moe_batches_served"] = exchanges.batches_served;
  (*out)["moe_bytes_written"] = exchanges.bytes_written;
  (*out)["moe_sleeps"] = exchanges.sleeps;
  static constexpr std::array<const char*, moe::kNumOutcomes> kNames = {
      "", "", "delivered", "own_timeout", "host_left", "ring_full", "lost_rank"};
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (*kNames[i] != 0) (*out)[std::string("moe_rows_") + kNames[i]] = exchanges.rows[i];
  }
  for (const auto& [key, rows] : exchanges.Lost()) {
    const auto& [cause, rank] = key;
    (*out)[std::string("moe_rows_") + kNames[static_cast<size_t>(cause)] + "." + std::to_string(rank)] = rows;
  }
}

}  // namespace

std::map<std::string, uint64_t> Metrics::Snapshot() const {
  std::map<std::string, uint64_t> out = {
      {"rounds", rounds.Get()},
      {"slow_rounds", slow_rounds.Get()},
      {"flushes", flushes.Get()},
      {"cache_hits", hits.Get()},
      {"cache_misses", misses.Get()},
      {"cache_changed", changed.Get()},
      {"cache_evictions", evictions.Get()},
      {"cache_growths", growths.Get()},
      {"control_bytes", control_bytes.Get()},
      {"control_frames", frames.Get()},
      {"operations", operations.Get()},
      {"payload_bytes", payload_bytes.Get()},
      {"bytes_copied", bytes_copied.Get()},
      {"bytes_folded", bytes_folded.Get()},
      {"program_operations", program_operations.Get()},
      {"small_lane_operations", small_lane_operations.Get()},
      {"bytes_into_views", bytes_into_views.Get()},
      {"messages_sent", messages_sent.Get()},
      {"messages_received", messages_received.Get()},
      {"message_bytes_sent", message_bytes_sent.Get()},
      {"message_bytes_received", message_bytes_received.Get()},
      {"wakeups", wakeups.Get()},
      {"sleeps", sleeps.Get()},
      {"wakes", wakes.Get()},
      {"yields", yields.Get()},
      {"system_calls", wakes.Get() + yields.Get() + waits_asleep.Get() + sleeps.Get()},
      {"allocations", Allocations()},
      {"held_back", held_back.Get()},
      {"lock_taken", lock_taken.Get()},
      {"fused_operations", fused_operations.Get()},
      {"inline_operations", inline_operations.Get()},
      {"lane_busy_ns", static_cast<uint64_t>(lane_busy.TotalNs())},
      {"blocked_ns", blocked_ns.Get()},
      {"progress_cpu_ns", static_cast<uint64_t>(progress_cpu.Ns())},
      {"steps", steps.Get()},
  };
  AddExchanges(*exchanges, &out);
  AddIndexed("fused_size_log2", fused_size, &out);
  AddIndexed("wait_ns", wait_ns, &out);
  for (size_t op = 0; op < op_count.size(); ++op) {
    if (op_count[op].Get() == 0) continue;
    const std::string name(wire::OpName(static_cast<wire::Op>(op)));
    out["op_count." + name] = op_count[op].Get();
    out["op_ns." + name] = op_ns[op].Get();
  }
  return out;
}

}  // namespace horocache::runtime
