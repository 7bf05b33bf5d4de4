#include "moe/printed_exchange.h"

#include <algorithm>
#include <bit>

namespace horocache::moe {
namespace {

uint64_t Bit(int rank) { return uint64_t{1} << rank; }
bool Has(uint64_t set, int rank) { return (set & Bit(rank)) != 0; }

}  // namespace

std::pair<PrintedExchange::Rank, std::vector<PrintedExchange::Sent>> PrintedExchange::Begin(int rank) const {
  const uint64_t own = routed(rank);
  const bool has_own_batch = Has(own, rank);
  const uint64_t all = ranks() == 64 ? ~uint64_t{0} : Bit(ranks()) - 1;
  int epsilon = epsilon_[static_cast<size_t>(rank)];
  if (changes_.epsilon_clamped) epsilon = std::min(epsilon, std::popcount(own & ~Bit(rank)));
  Rank state;
  state.mu = static_cast<int16_t>(std::popcount(own) + (Has(hosts_, rank) ? ranks() - 1 : 0) + has_own_batch);
  state.xi = static_cast<int16_t>(epsilon + has_own_batch);
  state.unserved = changes_.empty_to_every_rank ? all : hosts_;
  std::vector<Sent> sent;
  for (int host = 0; host < ranks(); ++host) {
    const bool to = Has(changes_.batch_to_every_host ? hosts_ : own, host);
    if (to && (host != rank || has_own_batch)) sent.push_back({host, Message::kBatch});
  }
  Advance(&state);
  return {state, sent};
}

std::vector<PrintedExchange::Sent> PrintedExchange::Take(int rank, int from, Message message, Rank* state) const {
  std::vector<Sent> sent;
  if (message == Message::kBatch) {
    --state->mu;
    state->unserved &= ~Bit(from);
    if (Has(routed(from), rank)) sent.push_back({from, Message::kResult});
  } else if (!changes_.state_per_peer || (Has(routed(rank), from) && !Has(state->got, from))) {
    --state->mu;
    --state->xi;
    if (message == Message::kResult || changes_.state_per_peer) state->got |= Bit(from);
  }
  Advance(state);
  return sent;
}

std::vector<PrintedExchange::Sent> PrintedExchange::TimeOut(int rank, Rank* state) const {
  state->left = Rank::Left::kTimeOut;
  std::vector<Sent> sent;
  if (!changes_.empty_for_any_epsilon && epsilon_[static_cast<size_t>(rank)] == 0) return sent;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer != rank && Has(state->unserved, peer)) sent.push_back({peer, Message::kEmpty});
  }
  return sent;
}

// Lines 12 to 16.
void PrintedExchange::Advance(Rank* state) {
  if (state->mu <= 0) {
    state->left = Rank::Left::kDone;
  } else if (state->xi == 0) {
    state->armed = true;
  }
}

}  // namespace horocache::moe
