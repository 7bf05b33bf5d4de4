// The process sets of a job, as all its ranks know them: which ranks, under which numbers.
//
// Note [Process sets at run time]
// A set that is added while the job runs comes into being in three steps. Every rank of the job, member or not,
// proposes it: an operation of the global set whose signature holds the number and the ranks, so that ranks that
// propose different sets get a mismatch. When that operation is done, the members of each host meet, as they would have
// in init(), while everything else goes on. When all ranks know that this went well everywhere, the members connect
// their hosts and take the set in. If anything went wrong on one rank, all drop the set.
//
// A set is removed in two. All ranks agree, as above; then its members leave it as they would leave the job, so nobody
// gives up memory that another still reads.
//
// Numbers count up and are not used again. Ranks may have counted differently, because one of them was interrupted, so
// before a proposal they agree on the greatest of their next numbers.
//
// The members of a set can also make it among themselves, for a caller whose other ranks know nothing of it: they
// declare it instead of proposing it, and have agreed on ranks and number, and tell each other how it went, by means of
// their own. They leave it in the same way.
//
// Shared: any thread asks and changes it; one mutex.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"

namespace horocache::runtime {

// Number 0 is the global set; the others count from 1.
class ProcessSets {
 public:
  // Of a job of `size` ranks, which has the global set alone.
  explicit ProcessSets(int size);

  // The lowest number that a new set can have here.
  uint32_t next() const HC_EXCLUDES(mutex_);
  // kInvalidArgument, naming the set, unless it has distinct ranks of the job, ascending, differs from those that there
  // are and from the global one, and the number is new. It can be used once it is open.
  Status Propose(uint32_t number, std::vector<int> ranks) HC_EXCLUDES(mutex_);
  // As Propose, for a set that its members make among themselves: another may have the same ranks, and the number may
  // be one that was passed over here.
  Status Declare(uint32_t number, std::vector<int> ranks) HC_EXCLUDES(mutex_);
  void Open(uint32_t number) HC_EXCLUDES(mutex_);
  // From now on operations on it are refused.
  void Close(uint32_t number) HC_EXCLUDES(mutex_);

  // Of proposed and open ones.
  std::vector<int> ranks(uint32_t number) const HC_EXCLUDES(mutex_);
  // Empty if it is not open.
  std::vector<int> OpenRanks(uint32_t number) const HC_EXCLUDES(mutex_);
  // kInvalidArgument if there is no such set, or the rank is no member of it; `what` is the subject of the message.
  Status CheckMember(uint32_t number, int rank, std::string_view what) const HC_EXCLUDES(mutex_);
  // kInvalidArgument unless the number is that of a set that was proposed, or is open, and not the global one.
  Status CheckPending(uint32_t number) const HC_EXCLUDES(mutex_);
  // kInvalidArgument for the global set, and if the number is no open one.
  Status CheckRemovable(uint32_t number) const HC_EXCLUDES(mutex_);
  // The rank's number within the set; -1 if it is not a member.
  int RankIn(uint32_t number, int rank) const HC_EXCLUDES(mutex_);
  // "process set 2 (ranks 0, 3)"
  std::string Describe(uint32_t number) const HC_EXCLUDES(mutex_);

  // For Handshake::agree: a line for each set but the global one. Of sets as they were given, good or not.
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
  std::vector<Set> sets_ HC_GUARDED_BY(mutex_);  // by number
};

}  // namespace horocache::runtime
