// Merges the equal requests of several ranks into one, with the ranks that made it. An inner node of a tree sends the
// merged requests up, so its parent reads each tensor once, however many ranks are below.
//
// Threads: the thread that holds the rank's progress lock. Pure.
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
  std::unordered_multimap<std::string, size_t> by_name_;  // several entries for a name if ranks disagree
};

// The contributions of a subtree's ranks to a round: their requests, and the lists of the ranks that send more than
// that.
class SubtreeRequests {
 public:
  // `merge`: true if equal requests are merged.
  explicit SubtreeRequests(bool merge) : merge_(merge) {}

  void Add(std::vector<MergedRequest> requests, std::vector<wire::RequestList> lists);
  // Adds a rank's own list, split into its requests and the rest. kJoin requests stay in the list.
  void Add(wire::RequestList list);
  // Empties it.
  void Take(std::vector<MergedRequest>* requests, std::vector<wire::RequestList>* lists);
  // Empties it for rank 0, into one list per rank: a copy of `nothing` for each rank that sent only requests. A
  // request of one rank goes into that rank's list, a request of several ranks into *merged.
  Status TakeAll(int size, const wire::RequestList& nothing, std::vector<wire::RequestList>* out,
                 std::vector<MergedRequest>* merged);

 private:
  const bool merge_;
  RequestMerger merger_;
  std::vector<MergedRequest> requests_;  // used if requests are not merged
  std::vector<wire::RequestList> lists_;
};

}  // namespace horocache::control
