// The one-sided exchange as printed: Algorithm 1 of Aristos (Aimuyo, "Pipelining One-sided Communication in Distributed
// Mixture of Experts", section 3), one round, with its faults. Layers use exchange.h; this is for comparison.
//
// A rank counts the messages that it still needs (mu) and those before its countdown may start (xi). Hosts run a batch
// as soon as they take it, and send the result. A rank whose countdown ends sends an empty message to the ranks that it
// has not served (W'), so that they do not wait for it.
//
// The printed listing lacks line 6. By the line numbers in the text and by the proof of theorem 3.1 it can only set xi
// to epsilon. `Changes` has what makes the algorithm live, one switch for each; docs/explanation/one_sided_moe.md has
// the counterexamples.
//
// Role: tests. Pure: no clock, lock or I/O. At most 64 ranks; a set of ranks is a bit mask.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace horocache::moe {

class PrintedExchange {
 public:
  enum class Message : uint8_t {
    kBatch,   // `shouldProcess`: tokens for the host, maybe none
    kResult,  // `processed` with a result
    kEmpty,   // `processed` without one
  };
  static constexpr int kNumMessages = 3;

  struct Changes {
    bool batch_to_every_host = false;  // line 11: hosts without tokens get an empty batch; printed: no batch
    bool empty_to_every_rank = false;  // line 5: W' begins with all ranks; printed: with the hosts
    bool state_per_peer = false;       // a result or empty counts once, and only of a host with tokens; printed: always
    bool epsilon_clamped = false;      // line 6: at most the other hosts with tokens of this rank; printed: epsilon
    bool empty_for_any_epsilon = false;  // line 28: after every time-out; printed: only with epsilon > 0
  };

  // One rank's variables.
  struct Rank {
    enum class Left : uint8_t { kNo, kDone, kTimeOut };
    int16_t mu = 0, xi = 0;
    bool armed = false;  // the countdown runs
    Left left = Left::kNo;
    uint64_t unserved = 0;  // W'
    uint64_t got = 0;       // hosts whose result came; with state_per_peer also whose empty message did
    bool operator==(const Rank&) const = default;
  };

  struct Sent {
    int to = 0;
    Message message = Message::kBatch;
    bool operator==(const Sent&) const = default;
  };

  // `hosts`: the ranks with experts. `routed`: for each rank the hosts that it has tokens for, G_phi. `epsilon`: of
  // each rank.
  PrintedExchange(uint64_t hosts, std::vector<uint64_t> routed, std::vector<int> epsilon, Changes changes)
      : hosts_(hosts), routed_(std::move(routed)), epsilon_(std::move(epsilon)), changes_(changes) {}

  int ranks() const { return static_cast<int>(routed_.size()); }
  uint64_t routed(int rank) const { return routed_[static_cast<size_t>(rank)]; }

  // Lines 2 to 11: a rank's variables, and its batches.
  std::pair<Rank, std::vector<Sent>> Begin(int rank) const;
  // Lines 17 to 26, for a rank that has not left: takes a message and returns those that the rank sends.
  std::vector<Sent> Take(int rank, int from, Message message, Rank* state) const;
  // Lines 28 to 30, for a rank whose countdown runs.
  std::vector<Sent> TimeOut(int rank, Rank* state) const;
  // True if the rank has left as if all were well, but some result has not come.
  bool IsMiscounted(int rank, const Rank& state) const {
    return state.left == Rank::Left::kDone && !changes_.state_per_peer && (routed(rank) & ~state.got) != 0;
  }

 private:
  static void Advance(Rank* state);

  uint64_t hosts_;
  std::vector<uint64_t> routed_;
  std::vector<int> epsilon_;
  Changes changes_;
};

}  // namespace horocache::moe
