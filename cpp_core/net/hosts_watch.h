// What the hosts of a job tell each other about their ranks: which are lost, and which do not run.
//
// Note [Watching between hosts]
// MPI does not tell that a peer, or the way to it, is gone: messages simply stay under way. The ranks of one host know
// more of each other. They see a process end (liveness.h), and each stores in the arena when it ran last. So every host
// has a speaker, the lowest rank that runs. It tells every rank of the other hosts at least every third of `silence_ns`
// what its host knows, and at once when a rank is lost. The speaker repeats all that is known each time, so a speaker
// that is stopped or dies takes nothing with it: the next rank of its host goes on half a second later. A stopped rank
// is therefore no loss while any rank of its host runs, whichever rank it is. A host is lost when nothing has come from
// it for `silence_ns` and some of its ranks have not said goodbye.
//
// A host with one rank has nobody who could tell: its death, its stop and the end of its network look the same, and
// each is a loss after `silence_ns`.
//
// Role: the holder of the runtime's role. Owns its link.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "net/arena.h"
#include "net/link.h"

namespace horocache::net {

struct HostsWatchConfig {
  int rank = 0;                    // in the job
  std::vector<int> host_of;        // by rank of the job
  std::vector<std::string> names;  // by rank of the job, for messages: "rank 2 (host b)"
  std::shared_ptr<Arena> arena;    // of all ranks of this host, in ascending order
  int64_t silence_ns = 0;          // after which another host is lost; 0: never
};

class HostsWatch {
 public:
  struct Loss {
    int rank = 0;
    Status why;
  };

  // `link` connects all ranks of the job.
  HostsWatch(HostsWatchConfig config, std::unique_ptr<Link> link, int64_t now_ns);

  // A rank of this host is lost: the other hosts are told before this returns, if this rank is the speaker and the link
  // takes it in time.
  void NoteLost(int rank, const Status& why, int64_t now_ns);
  // Speaks, listens and judges, not more often than is useful; true if there may be a loss.
  bool Step(int64_t now_ns);
  // A rank of another host that is lost, each once; false if there is none.
  bool NextLoss(Loss* loss);
  // Ranks of any host that have not run for `for_ns`, half a second at least; ascending.
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
  // Notes which ranks of this host run, and whether this rank is their speaker.
  void LookAround(int64_t now_ns);
  void SpeakIfDue(int64_t now_ns);
  void Speak(int64_t now_ns);
  void Listen(int64_t now_ns);
  void OnFrame(int from, std::span<const std::byte> frame, int64_t now_ns);
  void Judge(int64_t now_ns);
  void Lose(int rank, Status why);
  std::string Silence(int host) const;

  const HostsWatchConfig config_;
  const std::unique_ptr<Link> link_;
  const int own_host_;
  std::vector<Host> hosts_;
  std::vector<std::pair<int, std::string>> told_;  // to be told with each frame: lost ranks of this host, and why
  std::map<int, int64_t> stopped_since_ns_;        // by rank, of all hosts: since when it has not run
  std::vector<bool> lost_;                         // by rank
  std::deque<Loss> losses_;
  bool speaker_ = false;
  bool news_ = false;  // that was not spoken of yet
  int64_t looked_ns_ = 0;
  int64_t spoke_ns_ = 0;
};

}  // namespace horocache::net
