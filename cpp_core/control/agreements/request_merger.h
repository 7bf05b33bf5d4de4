// Requests of several ranks, equal ones kept once with the ranks that made them: what an inner node of a tree sends up,
// so that its parent reads each tensor once however many ranks are below.
//
// Role: coordinator. Pure.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "control/merged_request.h"
#include "wire/message.h"

namespace horocache::control {

class RequestMerger {
 public:
  void Add(MergedRequest request);
  const std::vector<MergedRequest>& merged() const { return merged_; }
  std::vector<MergedRequest> Take();

 private:
  std::vector<MergedRequest> merged_;
  std::unordered_multimap<std::string, size_t> by_name_;  // several where ranks disagree
};

// What the ranks of a subtree have to say in a round: their requests, and the lists of those that say more than that.
class RequestBasket {
 public:
  // `merge`: keep equal requests once.
  explicit RequestBasket(bool merge) : merge_(merge) {}

  void Add(std::vector<MergedRequest> requests, std::vector<wire::RequestList> lists);
  // A rank's own list, taken apart; joining stays in it.
  void Add(wire::RequestList list);
  // Empties the basket.
  void Take(std::vector<MergedRequest>* requests, std::vector<wire::RequestList>* lists);
  // Empties the basket for rank 0: one list per rank, as in `nothing` where the rank said no more than requests. A
  // request of one rank goes into that rank's list, one of several ranks into *merged.
  Status TakeAll(int size, const wire::RequestList& nothing, std::vector<wire::RequestList>* out,
                 std::vector<MergedRequest>* merged);

 private:
  const bool merge_;
  RequestMerger merger_;
  std::vector<MergedRequest> requests_;  // where they are not merged
  std::vector<wire::RequestList> lists_;
};

}  // namespace horocache::control
