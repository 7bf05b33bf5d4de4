// The registry of a job's process sets: the number and the ranks of each set.
//
// Note [Process sets at run time]
// A set is added to a running job in three steps.
//
// * All ranks of the job, members or not, propose the set by an operation of the global set (Runtime::ProposeSet). The
//   operation's signature holds the number and the ranks, so ranks that propose different sets get a mismatch.
// * When that operation is done, the members on each host bootstrap as in init(), while everything else continues
//   (ConnectSet).
// * When all ranks know that every bootstrap has succeeded, the members connect their hosts and start to drive the set
//   (OpenSet). If a step has failed on any rank, all ranks drop the set (DropSet).
//
// A set is removed in two steps. All ranks agree on it (ProposeRemoval). Then its members leave the set as they would
// leave the job (LeaveSet), so that no rank frees memory that another member still reads.
//
// Numbers count up and are never reused. Counts may differ between ranks, because a call may have been interrupted on
// some of them. So before a proposal the ranks agree on the maximum of their next numbers.
//
// The members can also create a set by themselves, without the other ranks. They declare the set instead of proposing
// it (DeclareSet). They agree on ranks and number, and exchange the outcome, by their own means. They leave the set in
// the same way.
//
// Shared: any thread reads and changes the registry; one mutex.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "observe/flight_text.h"

namespace horocache::runtime {

// Number 0 is the global set; the others count from 1.
class ProcessSets {
 public:
  // Starts with the global set of a job of `size` ranks.
  explicit ProcessSets(int size);

  // The lowest unused number on this rank.
  uint32_t next() const HC_EXCLUDES(mutex_);
  // Registers a set. Its operations are accepted once it is open. Returns kInvalidArgument, naming the set, unless the
  // ranks are distinct ranks of the job in ascending order, no proposed or open set has the same ranks, and the number
  // is new.
  Status Propose(uint32_t number, std::vector<int> ranks) HC_EXCLUDES(mutex_);
  // Registers a set that its members create by themselves. Unlike with Propose, another set may have the same ranks,
  // and the number may be one that this rank has skipped.
  Status Declare(uint32_t number, std::vector<int> ranks) HC_EXCLUDES(mutex_);
  void Open(uint32_t number) HC_EXCLUDES(mutex_);
  // Closes a set: its later operations are refused.
  void Close(uint32_t number) HC_EXCLUDES(mutex_);

  // The ranks of a proposed or open set.
  std::vector<int> ranks(uint32_t number) const HC_EXCLUDES(mutex_);
  // The ranks of an open set; empty if the set is not open.
  std::vector<int> OpenRanks(uint32_t number) const HC_EXCLUDES(mutex_);
  // The proposed and open sets but the global one.
  std::vector<observe::SetMembers> Members() const HC_EXCLUDES(mutex_);
  // Returns kInvalidArgument unless the set is open and the rank is a member. `what` is the subject of the error text.
  Status CheckMember(uint32_t number, int rank, std::string_view what) const HC_EXCLUDES(mutex_);
  // Returns kInvalidArgument unless the number is that of a proposed or open set other than the global one.
  Status CheckPending(uint32_t number) const HC_EXCLUDES(mutex_);
  // Returns kInvalidArgument unless the number is that of an open set other than the global one.
  Status CheckRemovable(uint32_t number) const HC_EXCLUDES(mutex_);
  // The rank's number within the set; -1 if it is not a member.
  int RankIn(uint32_t number, int rank) const HC_EXCLUDES(mutex_);
  // Returns text such as "process set 2 (ranks 0, 3)".
  std::string Describe(uint32_t number) const HC_EXCLUDES(mutex_);

  // Text for Handshake::agree: one line for each set but the global one. The sets are not checked.
  static std::string AgreeText(const std::vector<std::vector<int>>& sets);

 private:
  enum class State { kProposed, kOpen, kClosed };
  struct Set {
    std::vector<int> ranks;
    State state = State::kProposed;
  };

  // Null if it is not open.
  const Set* FindOpen(uint32_t number) const HC_REQUIRES(mutex_);
  static Status Refused(uint32_t number, const std::vector<int>& ranks, const std::string& why);
  Status CheckRanks(uint32_t number, const std::vector<int>& ranks) const;
  Status CheckNew(uint32_t number, const std::vector<int>& ranks) const HC_REQUIRES(mutex_);
  void Put(uint32_t number, std::vector<int> ranks) HC_REQUIRES(mutex_);
  int CountOpen() const HC_REQUIRES(mutex_);

  const int size_;
  mutable Mutex mutex_;
  std::vector<Set> sets_ HC_GUARDED_BY(mutex_);  // by set number
};

}  // namespace horocache::runtime
