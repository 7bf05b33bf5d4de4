// N controllers in one thread over channels without delay, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/duration.h"
#include "control/agreement.h"
#include "control/bitvector.h"
#include "control/control_channel.h"
#include "control/controller.h"
#include "control/settings.h"

namespace horocache::control {

inline constexpr int64_t kMs = 1'000'000;
inline constexpr int64_t kS = 1'000'000'000;

// The shared state of the channels. Bitvectors are visible at once, and frames arrive at once.
struct TestHub {
  explicit TestHub(int size_in)
      : size(size_in), hints(Count()), snapshots(Count()), payloads(Count()), frames(Count()), rung(Count()) {}
  size_t Count() const { return static_cast<size_t>(size); }

  int size;
  std::vector<std::vector<uint64_t>> hints;
  std::vector<std::map<uint64_t, std::vector<uint64_t>>> snapshots;  // by rank and round, of the last two rounds
  std::vector<std::map<uint64_t, std::vector<uint64_t>>> payloads;   // the inline data behind the snapshots
  bool shares_words = true;
  std::vector<std::deque<std::pair<int, std::string>>> frames;  // by receiver: sender and frame
  std::vector<int> rung;
  int64_t rings = 0;
  bool expect_equal_hashes = true;
};

class TestChannel final : public ControlChannel {
 public:
  TestChannel(TestHub* hub, int rank) : hub_(hub), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return hub_->size; }
  void SetHint(std::span<const uint64_t> words) override { hub_->hints[me()].assign(words.begin(), words.end()); }
  void AndHints(std::vector<uint64_t>* out) override {
    size_t longest = 1;
    for (const auto& hint : hub_->hints) longest = std::max(longest, hint.size());
    out->assign(longest, ~uint64_t{0});
    for (const auto& hint : hub_->hints) {
      AndInto(hint.empty() ? std::vector<uint64_t>{~uint64_t{0}} : hint, out);
    }
  }
  void Publish(uint64_t round, std::span<const uint64_t> words, std::span<const uint64_t> payload) override {
    auto& mine = hub_->snapshots[me()];
    ASSERT_TRUE(mine.empty() || mine.rbegin()->first + 1 == round) << "rank " << rank_ << " skips a round";
    for (const auto& others : hub_->snapshots) {
      ASSERT_TRUE(round < 2 || others.contains(round - 1) || (!others.empty() && others.rbegin()->first >= round))
          << "rank " << rank_ << " overwrites a snapshot that is still read";
    }
    for (size_t other = 0; other < hub_->Count() && hub_->expect_equal_hashes; ++other) {
      const auto theirs = hub_->snapshots[other].find(round);
      if (theirs == hub_->snapshots[other].end()) continue;
      ASSERT_EQ(theirs->second[kHashWord], words[kHashWord])
          << "the caches of ranks " << other << " and " << rank_ << " differ in round " << round;
    }
    mine[round].assign(words.begin(), words.end());
    if (mine.size() > 2) mine.erase(mine.begin());
    ASSERT_LE(payload.size(), kMaxPayloadWords);
    hub_->payloads[me()].erase(round - 2);
    hub_->payloads[me()][round].assign(payload.begin(), payload.end());
  }
  bool SharesBitvector(int) const override { return hub_->shares_words; }
  bool ReadPublished(int rank, uint64_t round, std::vector<uint64_t>* words, std::vector<uint64_t>* payload) override {
    const auto r = static_cast<size_t>(rank);
    if (!hub_->snapshots[r].contains(round)) return false;
    *words = hub_->snapshots[r].at(round);
    if (payload != nullptr) *payload = hub_->payloads[r].at(round);
    return true;
  }
  bool HasPublished(int rank, uint64_t round) override {
    const auto& theirs = hub_->snapshots[static_cast<size_t>(rank)];
    return !theirs.empty() && theirs.rbegin()->first >= round;
  }
  bool AndSnapshots(uint64_t round, std::vector<uint64_t>* out) override {
    for (const auto& theirs : hub_->snapshots) {
      if (!theirs.contains(round)) return false;
    }
    size_t longest = 0;
    for (const auto& theirs : hub_->snapshots) longest = std::max(longest, theirs.at(round).size());
    out->assign(longest, ~uint64_t{0});
    for (const auto& theirs : hub_->snapshots) AndInto(theirs.at(round), out);
    return true;
  }
  void Send(int to, std::string_view frame) override {
    hub_->frames[static_cast<size_t>(to)].emplace_back(rank_, std::string(frame));
  }
  bool Receive(int* from, std::string* frame) override {
    auto& mine = hub_->frames[me()];
    if (mine.empty()) return false;
    *from = mine.front().first;
    *frame = std::move(mine.front().second);
    mine.pop_front();
    return true;
  }
  bool Progress() override { return false; }
  void Ring(int rank) override {
    ++hub_->rung[static_cast<size_t>(rank)];
    ++hub_->rings;
  }

 private:
  size_t me() const { return static_cast<size_t>(rank_); }
  TestHub* const hub_;
  const int rank_;
};

inline wire::Signature Tensor(const std::string& name, std::vector<int64_t> shape = {4},
                              DType dtype = DType::kFloat32) {
  wire::Signature signature;
  signature.name = name;
  signature.tensors = {{name, dtype, std::move(shape)}};
  return signature;
}

inline wire::Signature Group(const std::string& name, const std::vector<std::string>& members, int64_t elements = 4) {
  wire::Signature signature;
  signature.name = name;
  for (const std::string& member : members) signature.tensors.push_back({member, DType::kFloat32, {elements}});
  return signature;
}

inline wire::Signature OfOp(wire::Op op, const std::string& name, int root = -1) {
  wire::Signature signature = Tensor(name);
  signature.op = op;
  signature.root = root;
  if (op == wire::Op::kBarrier || op == wire::Op::kJoin) signature.tensors.clear();
  return signature;
}

inline Selector AnySelector(int world) {
  BackendTraits any;
  any.name = "any";
  any.ops = ~0u;
  any.device_classes = ~0u;
  return Selector::Parse({any}, {world}, "").value();
}

// The outcome of one operation on one rank.
struct Outcome {
  int plans = 0;     // number of plans that completed it
  int failures = 0;  // must stay 0 if plans is 1, and at most 1
  Status status;
  int next_tensor = 0;
  bool done() const { return plans + failures > 0; }
};

// A change of settings on one rank.
struct Change {
  Settings settings;
  uint64_t round = 0;  // the round after the one that carried them
  size_t plans = 0;    // number of the rank's plans before
};

// A job of N ranks. A rank steps only when it is rung, when its thread has called it, or when its NextWakeNs has come.
class TestJob {
 public:
  explicit TestJob(int size, ControllerConfig config = {}, AgreementConfig agreement = {}) : hub(size) {
    config.size = size;
    hub.shares_words = agreement.strategy == "bits";  // the other strategies send bitvectors in frames
    if (config.selector.backends().empty()) config.selector = AnySelector(size);
    for (int rank = 0; rank < size; ++rank) {
      config.rank = rank;
      controllers.push_back(std::make_unique<Controller>(config));
      agreements.push_back(MakeAgreement(agreement));
      channels.push_back(std::make_unique<TestChannel>(&hub, rank));
    }
    const auto n = static_cast<size_t>(size);
    stopped.resize(n);
    waiting.resize(n);
    waits_for.resize(n, kNoOp);
    dirty.resize(n, true);
    outcomes.resize(n);
    plans.resize(n);
    reports.resize(n);
    settings.resize(n);
    lost.resize(n);
    next_op.resize(n, 1);
  }

  Controller& operator[](int rank) { return *controllers[static_cast<size_t>(rank)]; }
  int size() const { return hub.size; }

  // Submits an operation and returns its number.
  OpId Submit(int rank, const wire::Signature& signature, std::span<const std::byte> data = {}) {
    const OpId op = next_op[static_cast<size_t>(rank)]++;
    wire::Request request;
    request.signature = signature;
    const Status status = (*this)[rank].Submit(op, request, now, data);
    outcomes[static_cast<size_t>(rank)][op] = {};
    if (!status.ok()) outcomes[static_cast<size_t>(rank)][op] = {0, 1, status, 0};
    dirty[static_cast<size_t>(rank)] = true;
    return op;
  }
  std::vector<OpId> SubmitAll(const wire::Signature& signature) {
    std::vector<OpId> ops;
    for (int rank = 0; rank < size(); ++rank) ops.push_back(Submit(rank, signature));
    return ops;
  }
  void Wait(int rank, bool all = true) { SetWaiting(rank, true, all); }
  void StopWaiting(int rank) { SetWaiting(rank, false, false); }
  void SetWaiting(int rank, bool some, bool all) {
    waiting[static_cast<size_t>(rank)] = {some, all};
    dirty[static_cast<size_t>(rank)] = true;
  }
  // The rank's only thread waits until `op` is done.
  void WaitFor(int rank, OpId op) {
    waits_for[static_cast<size_t>(rank)] = op;
    Wait(rank);
  }
  void WaitAll() {
    for (int rank = 0; rank < size(); ++rank) Wait(rank);
  }
  void Touch(int rank) { dirty[static_cast<size_t>(rank)] = true; }

  Outcome& Of(int rank, OpId op) { return outcomes[static_cast<size_t>(rank)][op]; }
  bool Done(const std::vector<OpId>& ops) {
    for (int rank = 0; rank < size(); ++rank) {
      if (Of(rank, ops[static_cast<size_t>(rank)]).plans != 1) return false;
    }
    return true;
  }

  // Steps one rank; false if it had nothing to do.
  bool StepRank(int rank) {
    const auto r = static_cast<size_t>(rank);
    if (stopped[r]) return false;
    const bool woken = dirty[r] || hub.rung[r] > 0 || (lost[r].ok() && agreements[r]->NextWakeNs() <= now);
    if (!woken) return false;
    dirty[r] = false;
    hub.rung[r] = 0;
    int moves = 0;
    if (lost[r].ok()) {
      while (true) {
        if (waits_for[r] != kNoOp && outcomes[r][waits_for[r]].done()) {
          waits_for[r] = kNoOp;
          waiting[r] = {false, false};
        }
        controllers[r]->SetWaiting(waiting[r].first, waiting[r].second);
        const StatusOr<bool> moved = agreements[r]->Step(*controllers[r], *channels[r], now);
        if (!moved.ok()) {
          lost[r] = moved.status();
          controllers[r]->EndWith(moved.status());
          break;
        }
        TakeOutput(rank);
        if (!*moved) break;
        if (single_steps) {
          dirty[r] = true;
          break;
        }
        EXPECT_LT(++moves, 1000) << "rank " << rank << " moves without end";
        if (moves >= 1000) break;
      }
    }
    TakeOutput(rank);
    return true;
  }

  // Steps all ranks until none of them has anything to do at this time.
  void Settle() {
    int steps = 0;
    for (bool any = true; any;) {
      any = false;
      for (int rank = 0; rank < size(); ++rank) any |= StepRank(rank);
      ASSERT_LT(++steps, 10000) << "the job does not come to rest";
    }
  }

  int64_t NextWake() const {
    int64_t next = kNever;
    for (size_t r = 0; r < agreements.size(); ++r) {
      if (!stopped[r] && lost[r].ok()) next = std::min(next, agreements[r]->NextWakeNs());
    }
    return next;
  }

  // Lets time pass, from one wake-up to the next.
  void RunFor(int64_t ns) {
    const int64_t until = now + ns;
    Settle();
    while (NextWake() <= until) {
      now = std::max(now + 1, NextWake());
      Settle();
      if (::testing::Test::HasFatalFailure()) return;
    }
    now = until;
    Settle();
  }

  void ExpectEqualCaches() {
    for (int rank = 1; rank < size(); ++rank) {
      if ((*this)[rank].round() != (*this)[0].round()) continue;
      EXPECT_EQ((*this)[rank].cache_hash(), (*this)[0].cache_hash()) << "rank " << rank;
    }
  }

  TestHub hub;
  int64_t now = 1 * kS;
  std::vector<std::unique_ptr<Controller>> controllers;
  std::vector<std::unique_ptr<Agreement>> agreements;
  std::vector<std::unique_ptr<ControlChannel>> channels;
  bool single_steps = false;  // true: StepRank calls Step once instead of as often as it makes progress
  std::vector<bool> stopped;  // as by SIGSTOP
  std::vector<std::pair<bool, bool>> waiting;
  std::vector<OpId> waits_for;
  std::vector<bool> dirty;
  std::vector<std::map<OpId, Outcome>> outcomes;
  std::vector<std::vector<Plan>> plans;
  std::vector<std::vector<std::string>> reports;
  std::vector<std::vector<Change>> settings;
  std::vector<Status> lost;
  std::vector<OpId> next_op;

 private:
  void TakeOutput(int rank) {
    const auto r = static_cast<size_t>(rank);
    Plan plan;
    while (controllers[r]->NextPlan(&plan)) {
      for (const PlanItem& item : plan.items) {
        if (item.op == kNoOp) continue;
        Outcome& outcome = outcomes[r][item.op];
        EXPECT_EQ(item.first_tensor, outcome.next_tensor) << "pieces of a group out of order";
        outcome.next_tensor += item.num_tensors;
        if (!item.last_piece) continue;
        EXPECT_EQ(outcome.next_tensor, static_cast<int>(item.signature->tensors.size()));
        EXPECT_FALSE(outcome.done()) << "op " << item.op << " ends twice on rank " << rank;
        ++outcome.plans;
      }
      plans[r].push_back(plan);
    }
    for (Settings changed; controllers[r]->NextSettings(&changed);)
      settings[r].push_back({changed, controllers[r]->round(), plans[r].size()});
    Failure failure;
    while (controllers[r]->NextFailure(&failure)) {
      Outcome& outcome = outcomes[r][failure.op];
      EXPECT_FALSE(outcome.done()) << "op " << failure.op << " ends twice on rank " << rank;
      ++outcome.failures;
      outcome.status = failure.status;
    }
    std::string report;
    while (controllers[r]->NextReport(&report)) reports[r].push_back(report);
  }
};

}  // namespace horocache::control
