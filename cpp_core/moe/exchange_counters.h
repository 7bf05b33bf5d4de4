// Counts what the one-sided exchanges of a rank do. Threads: any.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <utility>

#include "base/mutex.h"
#include "moe/exchange.h"

namespace horocache::moe {

struct ExchangeCounters {
  using Number = std::atomic<uint64_t>;
  using LostRows = std::map<std::pair<Outcome, int>, uint64_t>;

  Number rounds{0};                         // rounds begun
  Number failed_rounds{0};                  // rounds that ended with an error
  Number batches_sent{0};                   // with tokens
  Number batches_served{0};                 // with tokens
  Number bytes_written{0};                  // payload of batches and results
  Number sleeps{0};                         // times a rank slept while it waited
  std::array<Number, kNumOutcomes> rows{};  // of this rank's batches, by outcome

  // Counts rows that were not delivered, by the cause and the rank of the job that they were for.
  void AddLost(Outcome cause, int rank, uint64_t amount) HC_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    lost[{cause, rank}] += amount;
  }
  LostRows Lost() const HC_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    return lost;
  }

  mutable Mutex mutex;
  LostRows lost HC_GUARDED_BY(mutex);

  static void Add(Number* number, uint64_t amount) { number->fetch_add(amount, std::memory_order_relaxed); }
};

}  // namespace horocache::moe
