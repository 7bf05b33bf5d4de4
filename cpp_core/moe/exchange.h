// One rank's part in the one-sided exchange of a mixture-of-experts layer: Algorithm 1 of Aristos (Aimuyo, "Pipelining
// One-sided Communication in Distributed Mixture of Experts", section 3), with the changes that make it live.
//
// Note [The one-sided exchange]
// A call of a layer is a round, numbered from 1. In a round each rank sends a *batch* of tokens to every rank with
// experts (a host), an empty one where it has none, and gets back one *result* for each batch with tokens. It handles
// what comes, in any order, and leaves the round when it has nothing left to wait for. It then *releases* the round:
// one number, the rounds that it has left, which the other ranks read. Nothing else is sent.
//
// The number answers every wait for a rank that is gone. A host that has released round r sends no further result of
// it, so a rank that waits for one knows that its tokens are dropped. A rank that has released round r needs no result
// of it, so a host does not wait for its batch. And a host that has released round r - depth has read the batch of that
// round, so its cell is free for the batch of round r.
//
// A rank may leave early. It insists on the result of its own batch and on `epsilon` results of other ranks; then its
// countdown of `tau` starts, and when it ends the rank leaves. `limit` bounds the whole round. An example: ranks 0 to 3
// are hosts, epsilon is 2, and rank 3 comes 1 s late. Ranks 0 to 2 serve one another and get two results each, wait
// for `tau`, and leave without the result of rank 3. Rank 3 comes, finds three releases, serves its own batch, and
// leaves; the tokens that it routed to ranks 0 to 2 are dropped (kHostLeft).
//
// How this differs from the printed algorithm, which deadlocks: see docs/explanation/one_sided_moe.md, and
// printed_exchange.h, which has the printed rules.
//
// Role: the thread that calls the layer. Pure: no clock, lock or I/O. Events and `now` go in, steps come out.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace horocache::moe {

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

// The fate of this rank's batch for a host. kWaiting only during a round.
enum class Outcome : uint8_t {
  kNone,        // no tokens
  kWaiting,     // the result has not come
  kDelivered,   // the result came
  kOwnTimeout,  // this rank left before the result came
  kHostLeft,    // the host left before it served the batch
  kRingFull,    // the host was `depth` or more rounds behind until this rank left, so that the batch had no cell
  kLostRank,    // the host is lost
};
constexpr int kNumOutcomes = static_cast<int>(Outcome::kLostRank) + 1;

// The settings of one round.
struct Plan {
  std::vector<int32_t> rows;    // of this rank's batch for each rank; 0 for ranks without experts
  int epsilon = 0;              // results of other ranks that this rank insists on; more than there are means all
  int64_t tau_ns = kForever;    // how long it stays after that
  int64_t limit_ns = kForever;  // how long it stays at most
  // True: the rank waits until the hosts have room for its batches. False: it does not wait for a host that has none;
  // the batch is dropped (kRingFull) if the rank has nothing else to wait for before there is room.
  bool wait_for_room = true;
};

class Exchange {
 public:
  enum class Act : uint8_t {
    kWait,   // nothing to do until an event or `until_ns`
    kSend,   // write the batch for `peer`, which may be empty
    kTake,   // the result of `peer` is there
    kServe,  // the batch of `peer` is there: compute and write its result
    kLeave,  // the round is over for this rank: release it
  };
  struct Step {
    Act act = Act::kWait;
    int peer = -1;
    int64_t until_ns = kForever;
    bool operator==(const Step&) const = default;
  };

  // `hosts`: for every rank whether it has experts. `depth`: rounds whose cells exist at the same time, at least 1.
  Exchange(int rank, std::vector<bool> hosts, uint32_t depth);

  // Begins the next round.
  void Enter(const Plan& plan, int64_t now_ns);

  // ---- events of the round that this rank is in; repetitions change nothing
  void OnBatch(int from, bool has_rows);
  void OnResult(int from);
  // `from` has left all rounds up to `round`. The caller has reported all cells that `from` wrote before.
  void OnReleased(int from, uint32_t round);
  // `from` does nothing any more. Final.
  void OnLost(int from);

  // The next step of this rank. It is taken at once: the next call returns another one. Time-outs come last, so that
  // what has arrived is never dropped.
  Step Next(int64_t now_ns);
  // Leaves the round at once; kWaiting becomes kOwnTimeout.
  void Leave();

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(peers_.size()); }
  uint32_t round() const { return round_; }  // the current round, or the last one
  bool inside() const { return inside_; }
  bool is_host(int rank) const { return peers_[rank].host; }
  uint32_t released(int rank) const { return peers_[rank].released; }
  bool lost(int rank) const { return peers_[rank].lost; }
  Outcome outcome(int host) const { return peers_[host].outcome; }
  // True if the round waits for something of `peer`: its result, its batch, or room for this rank's tokens.
  bool Awaits(int peer) const;
  // True if this rank's batch for `peer` still has no cell.
  bool AwaitsRoom(int peer) const { return inside_ && peers_[peer].sending == Sending::kPending; }
  bool Sent(int peer) const { return peers_[peer].sending == Sending::kSent; }
  // True if this rank served the batch of `peer` in this round.
  bool Served(int peer) const { return peers_[peer].serving == Serving::kServed; }

  bool operator==(const Exchange&) const = default;

 private:
  enum class Sending : uint8_t { kNothing, kPending, kSent };
  enum class Serving : uint8_t { kNothing, kAwaited, kArrived, kServed };
  struct Peer {
    bool host = false, lost = false;
    uint32_t released = 0;
    Sending sending = Sending::kNothing;
    Serving serving = Serving::kNothing;
    bool arrived = false;  // the result, which has not been taken yet
    Outcome outcome = Outcome::kNone;
    bool operator==(const Peer&) const = default;
  };

  Step Send();
  Step Take();
  Step Serve();
  void Drop(Peer* peer, Outcome cause);
  void Settle(int rank);
  bool IsIdle(const Peer& peer) const;
  bool IsDone() const;
  bool IsSatisfied() const;

  int rank_;
  uint32_t depth_;
  std::vector<Peer> peers_;
  uint32_t round_ = 0;
  bool inside_ = false;
  int needed_ = 0;  // results of other ranks before the countdown
  bool wait_for_room_ = true;
  int64_t tau_ns_ = kForever;
  int64_t limit_at_ns_ = kForever;
  int64_t leave_at_ns_ = kForever;  // the end of the countdown
};

}  // namespace horocache::moe
