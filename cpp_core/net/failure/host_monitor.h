// The hosts of a job report to each other which of their ranks are lost and which are stopped.
//
// Note [Peer monitoring between hosts]
// MPI does not report that a peer, or the way to it, is gone: messages simply stay in flight. The ranks of one host
// know more about each other. They see a process end (peer_monitor.h), and each rank stores in the arena when it ran
// last. So every host has a speaker, its lowest rank that runs. The speaker reports to every rank of the other hosts
// what its host knows, at least every third of `silence_ns`, and at once when a rank is lost. Each report repeats
// everything, so nothing is lost with a speaker that stops or dies: the next rank of its host takes over half a second
// later. A stopped rank is therefore not a loss while any rank of its host runs. A host is lost when nothing has
// arrived from it for `silence_ns` and some of its ranks have not said goodbye.
//
// For a host with one rank, its death, its stop and the end of its network look the same to the other hosts. Each is a
// loss after `silence_ns`.
//
// Threads: only the thread that holds the progress lock. Owns its link.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "net/message_link.h"
#include "net/shm/arena.h"

namespace horocache::net {

struct HostMonitorConfig {
  int rank = 0;                    // of the job
  std::vector<int> host_of;        // by rank of the job
  std::vector<std::string> names;  // by rank of the job, for messages: "rank 2 (host b)"
  std::shared_ptr<Arena> arena;    // of the ranks of this host, in ascending order
  int64_t silence_ns = 0;          // another host is lost after this silence; 0: never
};

class HostMonitor {
 public:
  struct Loss {
    int rank = 0;
    Status why;
  };

  // `link` connects all ranks of the job.
  HostMonitor(HostMonitorConfig config, std::unique_ptr<Link> link, int64_t now_ns);

  // Notes that a rank of this host is lost. If this rank is the speaker, it reports the loss to the other hosts before
  // it returns, as far as the link takes the report within 200 ms.
  void NoteLost(int rank, const Status& why, int64_t now_ns);
  // Sends and takes reports and checks for silent hosts, at most every 10 ms; true if NextLoss has a loss.
  bool Step(int64_t now_ns);
  // Takes a lost rank of another host, each once; false if there is none.
  bool NextLoss(Loss* loss);
  // The ranks of all hosts that have not run for at least `for_ns`, ascending. Only a rank that has not run for half a
  // second counts.
  std::vector<int> NotRunning(int64_t now_ns, int64_t for_ns) const;
  void SayGoodbye() { link_->SayGoodbye(); }

 private:
  struct Host {
    std::vector<int> ranks;  // ascending
    int64_t heard_ns = 0;
    bool lost = false;
  };

  bool IsHere(int rank) const { return HostOf(rank) == own_host_; }
  int HostOf(int rank) const { return config_.host_of[static_cast<size_t>(rank)]; }
  Host& HostAt(int host) { return hosts_[static_cast<size_t>(host)]; }
  const std::string& Name(int rank) const { return config_.names[static_cast<size_t>(rank)]; }
  // Updates which ranks of this host run, and whether this rank is their speaker.
  void LookAround(int64_t now_ns);
  void SpeakIfDue(int64_t now_ns);
  void Speak(int64_t now_ns);
  void Listen(int64_t now_ns);
  void OnFrame(int from, std::span<const std::byte> frame, int64_t now_ns);
  void Judge(int64_t now_ns);
  void Lose(int rank, Status why);
  std::string Silence(int host) const;

  const HostMonitorConfig config_;
  const std::unique_ptr<Link> link_;
  const int own_host_;
  std::vector<Host> hosts_;
  std::vector<std::pair<int, std::string>> reported_;  // lost ranks of this host, with their encoded Status
  std::map<int, int64_t> stopped_since_ns_;            // by rank, of all hosts: since when it has not run
  std::vector<bool> lost_;                             // by rank
  std::deque<Loss> losses_;
  bool speaker_ = false;
  bool unreported_ = false;  // true: reported_ has an entry that was not reported yet
  int64_t looked_ns_ = 0;
  int64_t spoke_ns_ = 0;
};

}  // namespace horocache::net
