#include "program/host_links.h"

#include <algorithm>
#include <utility>

namespace horocache::program {

HostLinks::HostLinks(data::SharedArea local, net::Communicator comm, std::vector<int> host_of)
    : rank_(comm.rank()),
      local_of_(host_of.size(), -1),
      far_ranks_(host_of.size(), true),
      near_(std::move(local)),
      far_(std::move(comm)) {
  for (size_t rank = 0; rank < host_of.size(); ++rank) {
    if (host_of[rank] != host_of[static_cast<size_t>(rank_)]) continue;
    local_of_[rank] = static_cast<int>(here_.size());
    far_ranks_[rank] = false;
    here_.push_back(static_cast<int>(rank));
  }
}

int64_t HostLinks::MostSlotBytes(Protocol protocol, int ends, int slots) const {
  return std::min(near_.MostSlotBytes(protocol, ends, slots), MpiLinks::kMostSlotBytes);
}

int HostLinks::Behind() const {
  const int behind = near_.Behind();
  return behind < 0 ? behind : here_[static_cast<size_t>(behind)];
}

const Wirings* HostLinks::NearOf(const Wirings& wirings) {
  const auto [found, made] = near_wirings_.try_emplace(&wirings, wirings);
  Wirings& near = found->second;
  if (!made) return &near;
  near.ranks.clear();
  for (const int rank : here_) near.ranks.push_back(wirings.ranks[static_cast<size_t>(rank)]);
  for (Wiring& one : near.ranks) {
    for (std::vector<Endpoint>* ends : {&one.out, &one.in}) {
      for (Endpoint& end : *ends) end.peer = end.peer < 0 ? -1 : local_of_[static_cast<size_t>(end.peer)];
    }
  }
  return &near;
}

void HostLinks::Begin(const LinkPlan& plan) {
  LinkPlan near_plan = plan;
  near_plan.wirings = NearOf(*plan.wirings);
  near_.Begin(near_plan);
  far_.Begin(plan, far_ranks_);
  const Wiring& wiring = plan.wirings->ranks[static_cast<size_t>(rank_)];
  const auto choose = [this](const std::vector<Endpoint>& ends, std::vector<Connections*>* chosen) {
    chosen->assign(ends.size(), &near_);
    for (size_t strand = 0; strand < ends.size(); ++strand) {
      const int peer = ends[strand].peer;
      if (peer >= 0 && far_ranks_[static_cast<size_t>(peer)]) (*chosen)[strand] = &far_;
    }
  };
  choose(wiring.out, &out_);
  choose(wiring.in, &in_);
}

}  // namespace horocache::program
