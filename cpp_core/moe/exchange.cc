#include "moe/exchange.h"

#include <algorithm>
#include <utility>

namespace horocache::moe {
namespace {

int64_t Later(int64_t now_ns, int64_t duration_ns) {
  return duration_ns > kForever - now_ns ? kForever : now_ns + duration_ns;
}

}  // namespace

Exchange::Exchange(int rank, std::vector<bool> hosts, uint32_t depth)
    : rank_(rank), depth_(depth), peers_(hosts.size()) {
  for (size_t i = 0; i < hosts.size(); ++i) peers_[i].host = hosts[i];
}

void Exchange::Enter(const Plan& plan, int64_t now_ns) {
  ++round_;
  inside_ = true;
  wait_for_room_ = plan.wait_for_room;
  tau_ns_ = plan.tau_ns;
  limit_at_ns_ = Later(now_ns, plan.limit_ns);
  leave_at_ns_ = kForever;
  int routed = 0;
  for (int i = 0; i < ranks(); ++i) {
    Peer& peer = peers_[i];
    const bool rows = plan.rows[i] > 0;
    routed += rows && i != rank_;
    // Without tokens of its own, a host needs no message of itself.
    peer.sending = peer.host && (rows || i != rank_) ? Sending::kPending : Sending::kNothing;
    peer.serving = peers_[rank_].host && (rows || i != rank_) ? Serving::kAwaited : Serving::kNothing;
    peer.arrived = false;
    peer.outcome = rows ? Outcome::kWaiting : Outcome::kNone;
    Settle(i);
  }
  // With more than there are, the countdown would never start.
  needed_ = std::min(plan.epsilon, routed);
}

void Exchange::OnBatch(int from, bool has_rows) {
  Serving& serving = peers_[from].serving;
  if (inside_ && serving == Serving::kAwaited) serving = has_rows ? Serving::kArrived : Serving::kNothing;
}

void Exchange::OnResult(int from) {
  Peer& peer = peers_[from];
  if (inside_ && peer.outcome == Outcome::kWaiting && peer.sending == Sending::kSent) peer.arrived = true;
}

void Exchange::OnReleased(int from, uint32_t round) {
  peers_[from].released = std::max(peers_[from].released, round);
  if (inside_) Settle(from);
}

void Exchange::OnLost(int from) {
  peers_[from].lost = true;
  if (inside_) Settle(from);
}

// Applies to the round what is known of a rank that has left it, or is lost.
void Exchange::Settle(int rank) {
  Peer& peer = peers_[rank];
  const bool left = peer.released >= round_;
  if (!left && !peer.lost) return;
  // A batch that has arrived is not served either: its owner does not wait for the result.
  if (peer.serving != Serving::kServed) peer.serving = Serving::kNothing;
  if (peer.sending == Sending::kPending) peer.sending = Sending::kNothing;
  if (!peer.arrived) Drop(&peer, left ? Outcome::kHostLeft : Outcome::kLostRank);
}

void Exchange::Drop(Peer* peer, Outcome cause) {
  if (peer->outcome == Outcome::kWaiting) peer->outcome = cause;
}

Exchange::Step Exchange::Next(int64_t now_ns) {
  if (!inside_) return {};
  Step step = Send();
  if (step.act == Act::kWait) step = Take();
  if (leave_at_ns_ == kForever && IsSatisfied()) leave_at_ns_ = Later(now_ns, tau_ns_);
  if (step.act == Act::kWait) step = Serve();
  if (step.act != Act::kWait) return step;
  const int64_t until_ns = std::min(leave_at_ns_, limit_at_ns_);
  if (!IsDone() && now_ns < until_ns) return {.act = Act::kWait, .peer = -1, .until_ns = until_ns};
  Leave();
  return {.act = Act::kLeave};
}

void Exchange::Leave() {
  for (Peer& peer : peers_) Drop(&peer, IsIdle(peer) ? Outcome::kRingFull : Outcome::kOwnTimeout);
  peers_[rank_].released = round_;
  inside_ = false;
}

Exchange::Step Exchange::Send() {
  for (int i = 0; i < ranks(); ++i) {
    Peer& peer = peers_[i];
    if (peer.sending != Sending::kPending) continue;
    // Round r uses the cell of round r - depth.
    if (round_ > depth_ && peer.released < round_ - depth_) continue;
    peer.sending = Sending::kSent;
    if (i == rank_) peer.serving = Serving::kArrived;
    return {.act = Act::kSend, .peer = i};
  }
  return {};
}

Exchange::Step Exchange::Take() {
  for (int i = 0; i < ranks(); ++i) {
    Peer& peer = peers_[i];
    if (!peer.arrived || peer.outcome != Outcome::kWaiting) continue;
    peer.outcome = Outcome::kDelivered;
    return {.act = Act::kTake, .peer = i};
  }
  return {};
}

// The own batch comes last: its result is the only one that no other rank waits for.
Exchange::Step Exchange::Serve() {
  for (int i = 1; i <= ranks(); ++i) {
    const int from = (rank_ + i) % ranks();
    Peer& peer = peers_[from];
    if (peer.serving != Serving::kArrived) continue;
    peer.serving = Serving::kServed;
    if (from == rank_) peer.arrived = true;
    return {.act = Act::kServe, .peer = from};
  }
  return {};
}

bool Exchange::Awaits(int rank) const {
  const Peer& peer = peers_[rank];
  return inside_ && (peer.outcome == Outcome::kWaiting || peer.serving == Serving::kAwaited);
}

// A batch that has no cell stays pending in any case: its host may have come to this round meanwhile, and waits for it.
bool Exchange::IsIdle(const Peer& peer) const { return !wait_for_room_ && peer.sending == Sending::kPending; }

// An empty batch that still has no cell does not count: the release of the round stands for it.
bool Exchange::IsDone() const {
  return std::none_of(peers_.begin(), peers_.end(), [this](const Peer& peer) {
    const bool waits = peer.outcome == Outcome::kWaiting && !IsIdle(peer);
    return waits || peer.serving == Serving::kAwaited || peer.serving == Serving::kArrived;
  });
}

bool Exchange::IsSatisfied() const {
  if (peers_[rank_].outcome == Outcome::kWaiting) return false;
  int resolved = 0;
  for (int i = 0; i < ranks(); ++i) {
    const Peer& peer = peers_[i];
    if (i == rank_ || peer.outcome == Outcome::kNone) continue;
    resolved += peer.outcome != Outcome::kWaiting || IsIdle(peer);
  }
  return resolved >= needed_;
}

}  // namespace horocache::moe
