// A control channel that injects the bugs of a Sabotage; without one it passes everything through.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "control/control_channel.h"
#include "testing/scenario.h"

namespace horocache::testing {

class SabotagedChannel final : public control::ControlChannel {
 public:
  // Does not own `inner`; `members` are the job's ranks behind the channel's.
  SabotagedChannel(control::ControlChannel* inner, const Sabotage* sabotage, int set, const std::vector<int>* members)
      : inner_(inner), sabotage_(sabotage), set_(set), members_(members) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void SetHint(std::span<const uint64_t> words) override { inner_->SetHint(words); }
  void AndHints(std::vector<uint64_t>* out) override { inner_->AndHints(out); }

  void Publish(uint64_t round, std::span<const uint64_t> words, std::span<const uint64_t> payload) override {
    if (!sabotage_->on_publish) {
      inner_->Publish(round, words, payload);
      return;
    }
    std::vector<uint64_t> changed(words.begin(), words.end());
    sabotage_->on_publish(set_, JobRank(rank()), round, &changed);
    inner_->Publish(round, changed, payload);
  }
  bool HasPublished(int rank, uint64_t round) override { return inner_->HasPublished(rank, round); }
  bool AndSnapshots(uint64_t round, std::vector<uint64_t>* out) override {
    if (!inner_->AndSnapshots(round, out)) return false;
    if (sabotage_->on_result) sabotage_->on_result(set_, JobRank(rank()), round, out);
    return true;
  }

  bool SharesBitvector(int rank) const override { return inner_->SharesBitvector(rank); }
  bool ReadPublished(int rank, uint64_t round, std::vector<uint64_t>* words, std::vector<uint64_t>* payload) override {
    if (!inner_->ReadPublished(rank, round, words, payload)) return false;
    if (sabotage_->on_payload && payload != nullptr)
      sabotage_->on_payload(set_, JobRank(this->rank()), JobRank(rank), payload);
    return true;
  }

  void Send(int to, std::string_view frame) override { inner_->Send(to, frame); }
  bool Receive(int* from, std::string* frame) override { return inner_->Receive(from, frame); }
  bool Progress() override { return inner_->Progress(); }
  void Ring(int rank) override {
    if (!sabotage_->on_ring || sabotage_->on_ring(set_, JobRank(this->rank()), JobRank(rank))) inner_->Ring(rank);
  }

 private:
  int JobRank(int rank) const { return (*members_)[static_cast<size_t>(rank)]; }

  control::ControlChannel* const inner_;
  const Sabotage* const sabotage_;
  const int set_;
  const std::vector<int>* const members_;
};

}  // namespace horocache::testing
