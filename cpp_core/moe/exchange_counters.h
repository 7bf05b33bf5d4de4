// Counts what the one-sided exchanges of a rank do. Threads: any.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "moe/exchange.h"

namespace horocache::moe {

struct ExchangeCounters {
  using Number = std::atomic<uint64_t>;

  Number rounds{0};                         // rounds begun
  Number failed_rounds{0};                  // rounds that ended with an error
  Number batches_sent{0};                   // with tokens
  Number batches_served{0};                 // with tokens
  Number bytes_written{0};                  // payload of batches and results
  Number sleeps{0};                         // times a rank slept while it waited
  std::array<Number, kNumOutcomes> rows{};  // of this rank's batches, by outcome

  static void Add(Number* number, uint64_t amount) { number->fetch_add(amount, std::memory_order_relaxed); }
};

}  // namespace horocache::moe
