// How the controllers of one process set exchange words and frames. Nothing here blocks; net/ implements it over shared
// memory and in process.
//
// Note [Snapshots and hints]
// A rank owns two kinds of words, and is their only writer. Its *hint* is live: it says what is pending now, is read at
// any time, and is never used to decide anything but whether proposing a round is worth while. Its *snapshot of round
// k* is frozen when published; all ranks AND the same snapshots, so all get the same result. Snapshots are
// double-buffered: a rank may publish round k + 1 while others still read round k, and nobody can reach round k + 2
// before every rank has published k + 1, that is, has finished reading k.
//
// Role: coordinator.
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
  // AND over all ranks' hints, as long as the longest. Word 0 of a rank that never set a hint counts as all ones; words
  // beyond the end of a hint count as zero.
  virtual void HintAnd(std::vector<uint64_t>* out) = 0;

  // `payload`, at most kMaxPayloadWords, is for ReadPublished alone.
  virtual void Publish(uint64_t round, std::span<const uint64_t> words, std::span<const uint64_t> payload) = 0;
  virtual bool HasPublished(int rank, uint64_t round) = 0;
  // The AND of all ranks' snapshots of `round`; false while some rank has not published it. Repeatable until this rank
  // publishes round + 2.
  virtual bool TestRound(uint64_t round, std::vector<uint64_t>* out) = 0;

  // Whether this rank can read the snapshots of `rank` one by one, without frames; and the snapshot, false while `rank`
  // has not published it. For agreements in which one rank speaks for those beside it, and for operations that ride on
  // a round. `payload` may be null.
  virtual bool SharesWords(int rank) const {
    static_cast<void>(rank);
    return false;
  }
  virtual bool ReadPublished(int rank, uint64_t round, std::vector<uint64_t>* words, std::vector<uint64_t>* payload) {
    static_cast<void>(rank), static_cast<void>(round), static_cast<void>(words), static_cast<void>(payload);
    return false;
  }

  // Frames: reliable, first in first out per pair of ranks. Send queues; Progress moves bytes as far as there is room
  // and returns true if any moved. Receive takes one whole frame, from any rank (round robin), and returns false if
  // there is none.
  virtual void Send(int to, std::string_view frame) = 0;
  virtual bool Receive(int* from, std::string* frame) = 0;
  virtual bool Progress() = 0;

  // Wakes the coordinator of `rank`, if it sleeps.
  virtual void Ring(int rank) = 0;

  // Ranks that are known not to have run for `for_ns`: stopped, or without processor time. A rank that waits for others
  // which wait for these blames these. None where every rank sees for itself which ranks have not answered.
  virtual std::vector<int> NotRunning(int64_t now_ns, int64_t for_ns) const {
    static_cast<void>(now_ns), static_cast<void>(for_ns);
    return {};
  }
};

}  // namespace horocache::control
