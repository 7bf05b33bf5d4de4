#include "program/host_links.h"

#include <algorithm>
#include <utility>

namespace horocache::program {

HostLinks::HostLinks(data::SharedArea local, net::Communicator comm, std::vector<int> host_of)
    : rank_(comm.rank()),
      host_of_(std::move(host_of)),
      local_of_(host_of_.size(), -1),
      far_ranks_(host_of_.size(), true),
      near_(std::move(local)),
      far_(std::move(comm)) {
  for (size_t rank = 0; rank < host_of_.size(); ++rank) {
    if (!Near(rank_, static_cast<int>(rank))) continue;
    local_of_[rank] = static_cast<int>(here_.size());
    far_ranks_[rank] = false;
    here_.push_back(static_cast<int>(rank));
  }
}

int64_t HostLinks::MostSlotBytes(Protocol protocol, const Wirings& wirings, int slots) {
  return near_.MostSlotBytes(protocol, NearOf(wirings), slots);
}

int HostLinks::Behind() const {
  const int behind = near_.Behind();
  return behind < 0 ? behind : here_[static_cast<size_t>(behind)];
}

// Renumbers the connections within hosts, equally on all ranks, so that connections between hosts take no shared
// memory.
const Wirings& HostLinks::NearOf(const Wirings& wirings) {
  const auto [found, made] = near_wirings_.try_emplace(&wirings);
  Wirings& near = found->second;
  if (!made) return near;
  std::vector<Wiring> all = wirings.ranks;
  const auto number = [this](int rank, const std::vector<Endpoint>& ends, int32_t* count) {
    std::vector<int32_t> numbers(ends.size(), -1);  // new number of an end, by its old number
    for (const Endpoint& end : ends) {
      if (end.peer >= 0 && Near(rank, end.peer)) numbers[static_cast<size_t>(end.here)] = (*count)++;
    }
    return numbers;
  };
  std::vector<std::vector<int32_t>> out, in;
  near.most_messages = wirings.most_messages;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    Wiring& one = all[rank];
    one.num_out = one.num_in = 0;
    out.push_back(number(static_cast<int>(rank), one.out, &one.num_out));
    in.push_back(number(static_cast<int>(rank), one.in, &one.num_in));
    near.most_ends = std::max({near.most_ends, one.num_out, one.num_in});
  }
  const auto connect = [this](std::vector<Endpoint>* ends, const auto& here, const auto& there) {
    for (Endpoint& end : *ends) {
      const int local = end.peer < 0 ? -1 : local_of_[static_cast<size_t>(end.peer)];
      if (local < 0) {
        end = {};
        continue;
      }
      end.here = here[static_cast<size_t>(end.here)];
      end.there = there[static_cast<size_t>(end.peer)][static_cast<size_t>(end.there)];
      end.peer = local;
    }
  };
  for (const int rank : here_) {
    Wiring& one = all[static_cast<size_t>(rank)];
    connect(&one.out, out[static_cast<size_t>(rank)], in);
    connect(&one.in, in[static_cast<size_t>(rank)], out);
    near.ranks.push_back(std::move(one));
  }
  return near;
}

void HostLinks::Begin(const LinkPlan& plan) {
  LinkPlan near_plan = plan;
  near_plan.wirings = &NearOf(*plan.wirings);
  near_.Begin(near_plan);
  far_.Begin(plan, far_ranks_);
  const Wiring& wiring = plan.wirings->ranks[static_cast<size_t>(rank_)];
  const auto choose = [this](const std::vector<Endpoint>& ends, std::vector<Connections*>* chosen) {
    chosen->assign(ends.size(), &near_);
    for (size_t thread_block = 0; thread_block < ends.size(); ++thread_block) {
      const int peer = ends[thread_block].peer;
      if (peer >= 0 && far_ranks_[static_cast<size_t>(peer)]) (*chosen)[thread_block] = &far_;
    }
  };
  choose(wiring.out, &out_);
  choose(wiring.in, &in_);
}

}  // namespace horocache::program
