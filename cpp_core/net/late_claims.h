// Goes on listening for a job that has begun, where its ranks may be of two jobs: see Note [One address, two jobs] in
// claimants.h. Rank 0 has it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "net/bootstrap.h"
#include "net/rendezvous.h"

namespace horocache::net {

class LateClaims {
 public:
  // `pids`: of the ranks, in their order. Nobody is expected to come after `until_ns`.
  LateClaims(std::unique_ptr<Listener> listener, const BootstrapConfig& config, std::vector<int> pids,
             int64_t until_ns);

  int fd() const { return listener_->fd(); }           // readable when somebody has come
  bool intact() const { return listener_->intact(); }  // the program has not closed it
  int64_t until_ns() const { return until_ns_; }

  // Takes in who has come. If it claims a rank of the job: tells it so, and returns what is wrong; else an empty text.
  // Waits a moment for what it has to say.
  std::string Look();

  // In a child of fork: the parent listens on.
  void CloseInChild() { listener_->CloseInChild(); }

 private:
  const std::unique_ptr<Listener> listener_;
  const std::string job_;
  const std::vector<std::string> claim_;
  const std::vector<int> pids_;
  const int64_t until_ns_;
};

// "two processes claim rank 1 of job 'j': pid 7 and pid 8", and what to do where the job is one of `claim`.
std::string ClaimedTwice(const std::string& rank, const std::string& job, int one, int other,
                         const std::vector<std::string>& claim);
// How jobs that have only `claim` in common can be told apart.
std::string TwoJobsAdvice(const std::vector<std::string>& claim);

}  // namespace horocache::net
