#include "testing/data_plane.h"

#include <algorithm>
#include <set>

#include "base/duration.h"

namespace horocache::testing {

DataPlane::DataPlane(const Scenario& scenario) : scenario_(scenario), random_(scenario.seed ^ 0xDA7A) {
  int owners = 0;
  for (const auto& members : scenario.sets) {
    first_owner_.push_back(owners);
    owners += static_cast<int>(members.size());
  }
  lanes_.resize(static_cast<size_t>(std::max(owners, scenario.ranks)));
}

int DataPlane::OwnerOf(int set, int member) const {
  const auto index = static_cast<size_t>(set);
  if (scenario_.sabotage.one_lane_per_rank) return scenario_.sets[index][static_cast<size_t>(member)];
  return first_owner_[index] + member;
}

void DataPlane::Enqueue(int set, int member, const control::Plan& plan, int64_t now_ns) {
  const int owner = OwnerOf(set, member);
  const uint16_t lane = scenario_.sabotage.one_lane_per_rank ? uint16_t{0} : plan.choice.lane;
  lanes_[static_cast<size_t>(owner)][lane].queue.push_back(Entry{set, member, plan});
  ++unfinished_;
  StartHead(owner, lane, now_ns);
}

void DataPlane::StartHead(int owner, uint16_t lane, int64_t now_ns) {
  Lane& state = lanes_[static_cast<size_t>(owner)][lane];
  if (state.running || state.queue.empty()) return;
  state.running = true;
  const Entry& head = state.queue.front();
  StartedPlan& meeting = meetings_[{head.set, head.plan.sequence}];
  ++meeting.started;
  meeting.lanes.emplace_back(owner, lane);
  if (meeting.started < scenario_.sets[static_cast<size_t>(head.set)].size()) return;
  const auto duration =
      static_cast<int64_t>(random_.Below(static_cast<uint64_t>(std::max<int64_t>(scenario_.max_duration_ns, 0)) + 1));
  endings_.push(Ending{now_ns + duration, order_++, head.set, head.plan.sequence});
}

int64_t DataPlane::NextNs() const { return endings_.empty() ? kNever : endings_.top().at_ns; }

void DataPlane::AdvanceTo(int64_t now_ns, std::vector<Done>* done) {
  while (!endings_.empty() && endings_.top().at_ns <= now_ns) {
    const Ending ending = endings_.top();
    endings_.pop();
    auto met = meetings_.find({ending.set, ending.sequence});
    if (met == meetings_.end()) continue;  // a member lost the set meanwhile
    const auto lanes = std::move(met->second.lanes);
    meetings_.erase(met);
    for (const auto& [owner, lane] : lanes) {
      Lane& state = lanes_[static_cast<size_t>(owner)][lane];
      Entry& head = state.queue.front();
      done->push_back(Done{head.set, head.member, std::move(head.plan)});
      state.queue.pop_front();
      state.running = false;
      --unfinished_;
      StartHead(owner, lane, now_ns);
    }
  }
}

std::vector<control::Plan> DataPlane::Drop(int set, int member) {
  std::vector<control::Plan> dropped;
  const int owner = OwnerOf(set, member);
  for (auto& [lane, state] : lanes_[static_cast<size_t>(owner)]) {
    for (auto entry = state.queue.begin(); entry != state.queue.end();) {
      if (entry->set != set) {
        ++entry;
        continue;
      }
      if (entry == state.queue.begin() && state.running) {
        // The plan cannot complete on all members any more, so it must not end on any other member.
        meetings_.erase({set, entry->plan.sequence});
        state.running = false;
      }
      dropped.push_back(std::move(entry->plan));
      entry = state.queue.erase(entry);
      --unfinished_;
    }
  }
  return dropped;
}

DataPlane::Waits DataPlane::WaitGraph() const {
  Waits waits;
  for (const auto& owner : lanes_) {
    for (const auto& [lane, state] : owner) {
      if (!state.running || state.queue.empty()) continue;
      const Entry& head = state.queue.front();
      const auto& members = scenario_.sets[static_cast<size_t>(head.set)];
      std::set<int> started;
      if (const auto met = meetings_.find({head.set, head.plan.sequence}); met != meetings_.end()) {
        for (const auto& [other, other_lane] : met->second.lanes) {
          const Entry& entry = lanes_[static_cast<size_t>(other)].at(other_lane).queue.front();
          started.insert(members[static_cast<size_t>(entry.member)]);
        }
      }
      auto& targets = waits[members[static_cast<size_t>(head.member)]];
      for (const int member : members) {
        if (started.count(member) != 0) continue;
        targets[member] = "plan " + std::to_string(head.plan.sequence) + " of set " + std::to_string(head.set);
      }
    }
  }
  return waits;
}

Status DataPlane::FindCircle() const {
  const Waits waits = WaitGraph();
  std::set<int> finished;
  for (const auto& [start, unused] : waits) {
    // Depth-first search; `path` has the ranks from `start` on, each with its next edge to follow.
    std::vector<std::pair<int, std::map<int, std::string>::const_iterator>> path;
    const auto enter = [&](int rank) {
      const auto found = waits.find(rank);
      if (found == waits.end() || found->second.empty()) return false;
      path.emplace_back(rank, found->second.begin());
      return true;
    };
    if (finished.count(start) == 0) enter(start);
    while (!path.empty()) {
      auto& [rank, edge] = path.back();
      if (edge == waits.at(rank).end()) {
        finished.insert(rank);
        path.pop_back();
        continue;
      }
      const int target = edge->first;
      const auto known =
          std::find_if(path.begin(), path.end(), [target](const auto& entry) { return entry.first == target; });
      if (known != path.end()) {
        std::string text = "ranks wait in a circle:";
        for (auto step = known; step != path.end(); ++step) {
          text += " rank " + std::to_string(step->first) + " in " + step->second->second + " for rank " +
                  std::to_string(step->second->first) + ";";
        }
        return {StatusCode::kInternal, text};
      }
      // The edge is advanced only when the search returns from it, so that the report can read it.
      if (finished.count(target) != 0 || !enter(target)) ++path.back().second;
    }
  }
  return Status::Ok();
}

}  // namespace horocache::testing
