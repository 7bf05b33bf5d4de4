// The coordinator of the paper's coordinator-worker step: counts, on rank 0 of a process set, which ranks have
// submitted each request, and turns the requests that all ranks have submitted into responses. It gets only requests
// that the response caches do not have.
//
// Threads: the thread that holds rank 0's progress lock. Pure. Owns the requests until they are answered.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "control/group_conflicts.h"
#include "control/merged_request.h"
#include "control/rank_set.h"
#include "control/selector.h"
#include "control/string_map.h"
#include "wire/message.h"

namespace horocache::control {

class Coordinator {
 public:
  // One request that some ranks have submitted.
  struct Pending {
    wire::Signature signature;  // the first rank's
    int first_rank = 0;
    RankSet has;
    std::string mismatch;  // the first difference between two ranks' signatures
    int64_t first_ns = 0;
    uint64_t sequence = 0;
    std::string defects = {};   // why the data of some ranks cannot be used
    bool input_failed = false;  // of one of these ranks
  };

  // The selector and the names outlive it.
  Coordinator(int size, const Selector* selector, const RankNames* names)
      : size_(size), selector_(selector), names_(*names), conflicts_(size) {}

  // Counts one rank's request. Failures that are already certain are appended to *responses. Not ok: the rank broke the
  // protocol.
  Status Add(int rank, const wire::Request& request, const RankSet& joined, int64_t now_ns,
             std::vector<wire::Response>* responses);

  // As Add, for a request that several ranks made alike. The ranks are counted in one pass if nothing else about the
  // request is known yet.
  Status AddMerged(const MergedRequest& merged, const RankSet& joined, int64_t now_ns,
                   std::vector<wire::Response>* responses);

  // Appends a response for every request that all ranks but the joined ones have submitted, in order of first arrival.
  void Respond(const RankSet& joined, std::vector<wire::Response>* responses);

  // Removes a request that has its response, for example one that the stall inspector fails.
  void Drop(const std::string& name);

  const StringMap<Pending>& pending() const { return pending_; }

 private:
  void NoteDefect(int rank, const wire::Signature& signature, Pending* pending) const;
  void FailConflict(int rank, const wire::Signature& signature, const std::vector<std::string>& names,
                    const std::string& key, const RankSet& joined, std::vector<wire::Response>* responses);
  wire::Response Answer(const Pending& pending, const RankSet& joined) const;

  const int size_;
  const Selector* const selector_;
  const RankNames& names_;
  GroupConflicts conflicts_;
  StringMap<Pending> pending_;
  std::vector<std::string> complete_;  // names that may be complete: candidates for Respond
  int joined_seen_ = 0;
  uint64_t next_sequence_ = 0;
};

// A response that fails a request.
wire::Response MakeFailure(const wire::Signature& signature, StatusCode code, std::string message,
                           std::vector<int32_t> ranks = {});

}  // namespace horocache::control
