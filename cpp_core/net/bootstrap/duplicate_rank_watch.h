// Keeps listening for a job that has begun although its ranks may belong to two jobs. See Note [Jobs that share an
// address and port] in contenders.h. Rank 0 owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "net/bootstrap/bootstrap.h"
#include "net/bootstrap/unix_rendezvous.h"

namespace horocache::net {

class DuplicateRankWatch {
 public:
  // `pids`: of the ranks, by rank. No process is expected to connect after `until_ns`.
  DuplicateRankWatch(std::unique_ptr<Listener> listener, const BootstrapConfig& config, std::vector<int> pids,
                     int64_t until_ns);

  int fd() const { return listener_->fd(); }           // readable when a process has connected
  bool intact() const { return listener_->intact(); }  // true: the program has not closed it
  int64_t until_ns() const { return until_ns_; }

  // Accepts one connection and waits at most 200 ms for its hello. If the process claims a rank of the job, sends it
  // the error and returns the error's text; else returns an empty text.
  std::string Look();

  // For the child of a fork: the parent keeps listening.
  void CloseInChild() { listener_->CloseInChild(); }

 private:
  const std::unique_ptr<Listener> listener_;
  const std::string job_;
  const std::vector<std::string> claim_;
  const std::vector<int> pids_;
  const int64_t until_ns_;
};

// "two processes claim rank 1 of job 'j': pid 7 and pid 8", and advice. `claim`: the job's Identity::shared_claim.
std::string ClaimedTwice(const std::string& rank, const std::string& job, int one, int other,
                         const std::vector<std::string>& claim);
// Advice on how to name jobs that have only `claim` in common.
std::string TwoJobsAdvice(const std::vector<std::string>& claim);

}  // namespace horocache::net
