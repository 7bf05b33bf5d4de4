#include "control/strategies/request_merger.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "control/strategies/rank_runs.h"

namespace horocache::control {

void RequestMerger::Add(MergedRequest request) {
  const auto [first, last] = by_name_.equal_range(request.request.signature.name);
  for (auto known = first; known != last; ++known) {
    MergedRequest& entry = merged_[known->second];
    if (!(entry.request == request.request)) continue;
    Unite(request.ranks, &entry.ranks);
    return;
  }
  by_name_.emplace(request.request.signature.name, merged_.size());
  merged_.push_back(std::move(request));
}

std::vector<MergedRequest> RequestMerger::Take() {
  by_name_.clear();
  return std::exchange(merged_, {});
}

void SubtreeRequests::Add(std::vector<MergedRequest> requests, std::vector<wire::RequestList> lists) {
  if (merge_) {
    for (MergedRequest& request : requests) merger_.Add(std::move(request));
  } else {
    std::ranges::move(requests, std::back_inserter(requests_));
  }
  std::ranges::move(lists, std::back_inserter(lists_));
}

void SubtreeRequests::Add(wire::RequestList list) {
  std::vector<MergedRequest> requests;
  requests.reserve(list.requests.size());
  std::vector<wire::Request> joins;
  for (wire::Request& request : list.requests) {
    if (request.signature.op == wire::Op::kJoin) {
      joins.push_back(std::move(request));
    } else {
      requests.push_back({std::move(request), {{list.rank, list.rank + 1}}});
    }
  }
  list.requests = std::move(joins);
  const wire::RequestList nothing{
      .process_set = list.process_set, .epoch = list.epoch, .round = list.round, .rank = list.rank};
  std::vector<wire::RequestList> lists;
  if (!(list == nothing)) lists.push_back(std::move(list));
  Add(std::move(requests), std::move(lists));
}

void SubtreeRequests::Take(std::vector<MergedRequest>* requests, std::vector<wire::RequestList>* lists) {
  *requests = merge_ ? merger_.Take() : std::exchange(requests_, {});
  *lists = std::exchange(lists_, {});
}

Status SubtreeRequests::TakeAll(int size, const wire::RequestList& nothing, std::vector<wire::RequestList>* out,
                                std::vector<MergedRequest>* merged) {
  std::vector<MergedRequest> requests;
  std::vector<wire::RequestList> lists;
  Take(&requests, &lists);
  out->assign(static_cast<size_t>(size), nothing);
  for (int32_t rank = 0; rank < size; ++rank) (*out)[static_cast<size_t>(rank)].rank = rank;
  for (wire::RequestList& list : lists) {
    if (list.rank < 0 || list.rank >= size) {
      return {StatusCode::kCorrupt, "a request list is of rank " + std::to_string(list.rank) + "."};
    }
    // If a rank sends a list in both passes of a round, the list of the second pass comes later, says more and replaces
    // the first. A join is sent only once, so the first list's is kept.
    wire::RequestList& place = (*out)[static_cast<size_t>(list.rank)];
    std::vector<wire::Request> joins = std::move(place.requests);
    place = std::move(list);
    std::ranges::move(joins, std::back_inserter(place.requests));
  }
  for (MergedRequest& request : requests) {
    if (request.ranks.empty()) return {StatusCode::kCorrupt, "a request is of no rank."};
    const RankRun& run = request.ranks.front();
    if (request.ranks.size() == 1 && run.end - run.begin == 1) {
      (*out)[static_cast<size_t>(run.begin)].requests.push_back(std::move(request.request));
    } else {
      merged->push_back(std::move(request));
    }
  }
  return Status::Ok();
}

}  // namespace horocache::control
