// Start-up over MPI: the rank that an error names, and the ranks that get the error. With a timeout of 0, a rank takes
// only messages that have arrived.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "net/bootstrap/handshake.h"
#include "net/mpi/bootstrap.h"
#include "net/mpi/failure_note.h"
#include "net/mpi/group_check.h"
#include "net/mpi/host_clock.h"
#include "net/mpi/memory_mpi.h"
#include "net/mpi/watchdog.h"

namespace horocache::net {
namespace {

constexpr int64_t kLongNs = 60 * kNsPerS;
constexpr int kTag = 7, kFailureTag = 0x6868;

Introduction Of(const std::string& host, const std::string& version = "1") {
  return {{version, 1, 0, "name=value\n"}, {host, host}};
}

constexpr int64_t kHungNs = kNsPerS / 20 - Watchdog::kStepNs;  // with it, the watchdog ends the process after 0.05 s

Status Interrupted() { return {StatusCode::kAborted, "somebody has interrupted"}; }

// Runs `act` for the other ranks, each on a thread, and for rank 0 with `timeout_ns` once each of them has sent it a
// message.
template <typename Result>
class MpiJob {
 public:
  using Act = std::function<Result(MemoryMpi* mpi, int64_t timeout_ns)>;

  explicit MpiJob(int size) : messages_(size), results_(static_cast<size_t>(size)) {}

  const std::vector<std::optional<Result>>& Run(const std::vector<int>& others, int64_t timeout_ns, const Act& act) {
    std::vector<std::thread> threads;
    for (const int rank : others) {
      threads.emplace_back([this, rank, &act] {
        MemoryMpi mpi(&messages_, rank);
        results_[static_cast<size_t>(rank)] = act(&mpi, kLongNs);
      });
    }
    while (messages_.Count(0) < others.size()) std::this_thread::yield();
    MemoryMpi mpi(&messages_, 0);
    results_[0] = act(&mpi, timeout_ns);
    for (std::thread& thread : threads) thread.join();
    return results_;
  }

 private:
  MemoryMessages messages_;
  std::vector<std::optional<Result>> results_;  // by rank
};

TEST(MpiBootstrap, HostsAreNumberedByTheirFirstRank) {
  const std::vector<std::string> hosts = {"b", "a", "b", "a"};
  MpiJob<StatusOr<Placement>> job(4);
  for (const auto& placed : job.Run({1, 2, 3}, 0, [&](MemoryMpi* mpi, int64_t timeout_ns) {
         return BootstrapOverMpi(mpi->World(), Of(hosts[static_cast<size_t>(mpi->Rank({}))]), timeout_ns, nullptr);
       })) {
    ASSERT_TRUE((*placed).ok()) << (*placed).status().message();
    EXPECT_EQ((*placed)->host_of, (std::vector<int>{0, 1, 0, 1}));
    EXPECT_EQ((*placed)->host_names, (std::vector<std::string>{"b", "a"}));
  }
}

TEST(MpiBootstrap, EveryRankGetsTheAnnouncementOfRank0) {
  for (const size_t bytes : {size_t{0}, size_t{1}, kMaxAnnouncement}) {
    MpiJob<StatusOr<Placement>> job(3);
    for (const auto& placed : job.Run({1, 2}, 0, [&](MemoryMpi* mpi, int64_t timeout_ns) {
           Introduction own = Of("a");
           own.announcement = mpi->Rank({}) == 0 ? std::string(bytes, 'x') : "not rank 0's";
           return BootstrapOverMpi(mpi->World(), own, timeout_ns, nullptr);
         })) {
      ASSERT_TRUE((*placed).ok()) << (*placed).status().message();
      EXPECT_EQ((*placed)->announcement.size(), bytes);
      EXPECT_EQ((*placed)->host_names, std::vector<std::string>{"a"});
    }
  }
}

TEST(MpiBootstrap, AnAnnouncementThatIsTooLongIsAnErrorOnAllRanks) {
  MpiJob<StatusOr<Placement>> job(3);
  for (const auto& placed : job.Run({1, 2}, 0, [](MemoryMpi* mpi, int64_t timeout_ns) {
         Introduction own = Of("a");
         if (mpi->Rank({}) == 0) own.announcement.assign(kMaxAnnouncement + 1, 'x');
         return BootstrapOverMpi(mpi->World(), own, timeout_ns, nullptr);
       })) {
    EXPECT_EQ((*placed).status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE((*placed).status().message().find("at most 262144"), std::string::npos) << (*placed).status().message();
  }
}

TEST(MpiBootstrap, EveryRankThatCalledInitNamesTheMissingRanks) {
  MpiJob<StatusOr<Placement>> job(5);
  const auto& results = job.Run({1, 3}, 0, [](MemoryMpi* mpi, int64_t timeout_ns) {
    return BootstrapOverMpi(mpi->World(), Of("a"), timeout_ns, nullptr);
  });
  for (const int rank : {0, 1, 3}) {
    const Status why = results[static_cast<size_t>(rank)]->status();
    EXPECT_EQ(why.code(), StatusCode::kStartup);
    EXPECT_NE(why.message().find("ranks 2 and 4 of 5 did not call init() within"), std::string::npos) << why.message();
  }
}

TEST(MpiBootstrap, AFailedWaitCheckEndsTheWaitOnAllRanks) {
  MpiJob<StatusOr<Placement>> job(3);
  const auto& results = job.Run({2}, kLongNs, [](MemoryMpi* mpi, int64_t timeout_ns) {
    return BootstrapOverMpi(mpi->World(), Of("a"), timeout_ns, mpi->Rank({}) == 0 ? Interrupted : WaitCheck());
  });
  EXPECT_EQ(results[0]->status().message(), Interrupted().message());
  EXPECT_EQ(results[2]->status().message(), "rank 0: " + Interrupted().message());
}

TEST(MpiMemberList, ADifferentListIsAnErrorOnAllMembers) {
  MpiJob<Status> job(4);
  const auto& results = job.Run({1, 3}, kLongNs, [](MemoryMpi* mpi, int64_t timeout_ns) {
    const std::vector<int> list = mpi->Rank({}) == 1 ? std::vector{1, 0, 3} : std::vector{0, 1, 3};
    return CompareMembers(mpi, mpi->world(), list, "init(comm=", kTag, timeout_ns, nullptr);
  });
  for (const int rank : {0, 1, 3}) {
    const Status& why = *results[static_cast<size_t>(rank)];
    EXPECT_EQ(why.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(why.message().find("rank 1 called init(comm=[1, 0, 3]), rank 0 called init(comm=[0, 1, 3])"),
              std::string::npos)
        << why.message();
  }
}

TEST(MpiMemberList, AMissingMemberIsNamedUnlessTheWaitCheckFails) {
  MemoryMessages messages(3);
  MemoryMpi mpi(&messages, 0);
  const Status late = CompareMembers(&mpi, mpi.world(), {0, 2}, "init(comm=", kTag, 0, nullptr);
  EXPECT_EQ(late.code(), StatusCode::kStartup);
  EXPECT_NE(late.message().find("rank 2 did not call init(comm=[0, 2]) within"), std::string::npos) << late.message();
  EXPECT_EQ(CompareMembers(&mpi, mpi.world(), {0, 2}, "init(comm=", kTag, 0, Interrupted).code(), StatusCode::kAborted);
}

TEST(MpiMemberList, AMemberThatHasSentItsListWaitsForTheAnswerAlsoWhenInterrupted) {
  MpiJob<Status> job(2);
  const auto& results = job.Run({1}, kLongNs, [](MemoryMpi* mpi, int64_t timeout_ns) {
    if (mpi->Rank({}) == 1)
      return CompareMembers(mpi, mpi->world(), {0, 1}, "init(comm=", kTag, timeout_ns, Interrupted);
    Nap(kNsPerS / 5);  // longer than rank 1's interval between checks for an interruption
    return CompareMembers(mpi, mpi->world(), {0, 1}, "init(comm=", kTag, timeout_ns, nullptr);
  });
  for (const auto& result : results) EXPECT_TRUE(result->ok()) << result->message();
}

TEST(MpiMemberList, AListThatCannotBeSentIsAnErrorAtOnceUnlessTheWaitCheckFails) {
  MemoryMessages messages(2);
  MemoryMpi mpi(&messages, 1, 0);
  const Status why = CompareMembers(&mpi, mpi.world(), {0, 1}, "init(comm=", kTag, kLongNs, nullptr);
  EXPECT_EQ(why.code(), StatusCode::kStartup);
  EXPECT_EQ(why.message().find("rank 0 did not call init(comm=[0, 1]) within"), 0U) << why.message();
  EXPECT_NE(why.message().find("MPI_ERR_PROC_FAILED"), std::string::npos) << why.message();
  EXPECT_EQ(CompareMembers(&mpi, mpi.world(), {0, 1}, "init(comm=", kTag, kLongNs, Interrupted).code(),
            StatusCode::kAborted);
}

TEST(MpiMemberList, AnUnreachableMemberIsAnErrorOfTheSenderAndOthersGetTheAnswer) {
  MemoryMessages messages(3);
  for (const int rank : {1, 2}) {
    const std::vector<int> list = {0, 1, 2};
    messages.Put(0, {rank, kTag, {reinterpret_cast<const char*>(list.data()), list.size() * sizeof(int)}});
  }
  MemoryMpi mpi(&messages, 0, 1);
  const Status why = CompareMembers(&mpi, mpi.world(), {0, 1, 2}, "init(comm=", kTag, kLongNs, nullptr);
  EXPECT_NE(why.message().find("MPI_ERR_PROC_FAILED"), std::string::npos) << why.message();
  EXPECT_EQ(messages.Count(1), 0U);
  EXPECT_EQ(messages.Count(2), 1U);
}

TEST(MpiClock, ARankThatDoesNotAnswerIsNamedUnlessTheWaitCheckFails) {
  const std::vector<int> host_of = {0, 0, 1, 1};
  MemoryMessages messages(4);
  for (const auto& [rank, silent] : {std::pair{0, 2}, {2, 0}, {3, 2}}) {
    MemoryMpi mpi(&messages, rank);
    const Status why = MeasureClock(mpi.World(), host_of, 0, nullptr).status();
    EXPECT_EQ(why.code(), StatusCode::kStartup);
    const std::string named = "rank " + std::to_string(silent) + " called init() and did not answer";
    EXPECT_EQ(why.message().find(named), 0U) << why.message();
    EXPECT_EQ(MeasureClock(mpi.World(), host_of, 0, Interrupted).status().code(), StatusCode::kAborted);
  }
  MemoryMpi beside_rank_0(&messages, 1);
  EXPECT_TRUE(MeasureClock(beside_rank_0.World(), host_of, 0, nullptr).ok()) << "rank 1 has the clock of rank 0";
}

TEST(MpiClock, EachHostMeasuresItsOffsetFromRank0) {
  MpiJob<StatusOr<ClockOffset>> job(3);
  for (const auto& clock : job.Run({1, 2}, kLongNs, [](MemoryMpi* mpi, int64_t timeout_ns) {
         return MeasureClock(mpi->World(), {0, 1, 2}, timeout_ns, nullptr);
       })) {
    ASSERT_TRUE((*clock).ok()) << (*clock).status().message();
    EXPECT_LE(std::abs((*clock)->offset_ns), (*clock)->error_ns) << "they share a clock";
  }
}

TEST(MpiFailureNote, ARankGetsTheFirstNoteThatWasSent) {
  MemoryMessages messages(3);
  MemoryMpi first(&messages, 0), second(&messages, 1), third(&messages, 2);
  EXPECT_TRUE(PollFailure(first.World()).ok());
  const std::string words = "rank 7 is lost ";
  SendFailure(third.World(), {0, 1}, {StatusCode::kPeerLost, words + std::string(1 << 20, 'x')});
  SendFailure(second.World(), {0}, {StatusCode::kStartup, "rank 8 is lost"});
  for (MemoryMpi* rank : {&first, &second}) {
    const Status why = PollFailure(rank->World());
    EXPECT_EQ(why.code(), StatusCode::kPeerLost);
    EXPECT_EQ(why.message().find(words + "xxx"), 0U) << "a long text must lose its end, not its beginning";
  }
}

TEST(MpiFailureNote, ANoteThatDoesNotDecodeNamesItsSender) {
  MemoryMessages messages(2);
  MemoryMpi mpi(&messages, 0);
  for (const std::string& bytes : {std::string(), std::string("abc"), EncodeStatus(Status::Ok())}) {
    messages.Put(0, {1, kFailureTag, bytes});
    const Status why = PollFailure(mpi.World());
    EXPECT_EQ(why.code(), StatusCode::kCorrupt);
    EXPECT_EQ(why.message().find("rank 1 has failed to start"), 0U) << why.message();
  }
}

TEST(MpiWatchdog, ACallThatDoesNotReturnEndsTheProcessInEveryStepOfStartUp) {
  MemoryMessages messages(2);
  MemoryMpi mpi(&messages, 1);
  mpi.Hang();
  const auto ended = ::testing::ExitedWithCode(1);
  const Introduction own = Of("a");
  EXPECT_EXIT((void)BootstrapOverMpi(mpi.World(), own, kHungNs, nullptr), ended,
              "rank 1 has been in a call of MPI when");
  EXPECT_EXIT((void)MeasureClock(mpi.World(), {0, 1}, kHungNs, nullptr), ended, "clocks were compared");
  EXPECT_EXIT((void)CompareMembers(&mpi, mpi.world(), {0, 1}, "init(comm=", kTag, kHungNs, nullptr), ended,
              "when init\\(comm=\\[0, 1\\]\\) was compared, and the call has not returned");
  EXPECT_EXIT((void)CopyForAll(&mpi, mpi.world(), own, kHungNs, nullptr), ended, "a communicator was duplicated");
}

}  // namespace
}  // namespace horocache::net
