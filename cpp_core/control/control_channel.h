// How the controllers of one process set exchange bitvectors and frames. No call blocks. net/shm and net/hosts
// implement the channel over shared memory and between hosts, testing/inproc_channel.h within a process.
//
// Note [Snapshots and hints]
// A rank owns two bitvectors and is their only writer. Its *hint* is live: it shows what is pending on the rank now.
// Any rank may read it at any time, and it decides only whether proposing a round is worthwhile. Its *snapshot
// of round k* is frozen when it is published. All ranks AND-reduce the same snapshots, so all get the same result.
// Snapshots are double-buffered: a rank may publish round k + 1 while others still read round k, and no rank reaches
// round k + 2 before every rank has published k + 1 and has thereby finished reading k.
//
// Threads: the thread that holds the rank's progress lock.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace horocache::control {

class ControlChannel {
 public:
  virtual ~ControlChannel() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void SetHint(std::span<const uint64_t> words) = 0;
  // Writes the AND of all ranks' hints, as long as the longest hint. Word 0 of a rank that never set a hint counts as
  // all ones; words beyond the end of a hint count as zero.
  virtual void AndHints(std::vector<uint64_t>* out) = 0;

  // Publishes this rank's snapshot of `round`. `payload` has at most kMaxPayloadWords words; only ReadPublished returns
  // it.
  virtual void Publish(uint64_t round, std::span<const uint64_t> words, std::span<const uint64_t> payload) = 0;
  virtual bool HasPublished(int rank, uint64_t round) = 0;
  // Writes the AND of all ranks' snapshots of `round`; false while some rank has not published it, and always where the
  // ranks are on several hosts: there RelayAgreement::AndSubtree computes the AND. Repeatable until this rank publishes
  // round + 2.
  virtual bool AndSnapshots(uint64_t round, std::vector<uint64_t>* out) = 0;

  // True if this rank can read each snapshot of `rank` directly, without frames.
  virtual bool SharesBitvector(int rank) const {
    static_cast<void>(rank);
    return false;
  }
  // Reads the snapshot of `rank`; false while `rank` has not published it. Agreements in which one rank speaks for
  // others on its host use it, and so do inline allreduces. `payload` may be null.
  virtual bool ReadPublished(int rank, uint64_t round, std::vector<uint64_t>* words, std::vector<uint64_t>* payload) {
    static_cast<void>(rank), static_cast<void>(round), static_cast<void>(words), static_cast<void>(payload);
    return false;
  }

  // Frames are reliable and arrive first in, first out per pair of ranks. Send queues a frame; Progress moves bytes as
  // far as there is room and returns true if any moved. Receive takes one whole frame from any rank (round robin) and
  // returns false if there is none.
  virtual void Send(int to, std::string_view frame) = 0;
  virtual bool Receive(int* from, std::string* frame) = 0;
  virtual bool Progress() = 0;

  // Wakes the driving thread of `rank` if it sleeps.
  virtual void Ring(int rank) = 0;

  // The ranks that are known not to have run for `for_ns`: they are stopped, or have no processor time. A rank that
  // waits for others, which in turn wait for these ranks, blames these. Empty where every rank sees for itself which
  // ranks have not answered.
  virtual std::vector<int> NotRunning(int64_t now_ns, int64_t for_ns) const {
    static_cast<void>(now_ns), static_cast<void>(for_ns);
    return {};
  }
};

}  // namespace horocache::control
