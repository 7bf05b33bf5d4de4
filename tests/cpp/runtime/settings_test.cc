// Settings, backends and the log of a runtime, with ranks that are threads.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "runtime/in_process.h"

namespace horocache::runtime {
namespace {

// Returns false if the rank has not come to that number of changes in time.
bool Await(const Runtime& runtime, uint64_t changes) {
  for (const int64_t until_ns = NowNs() + kPatienceNs; runtime.settings_changes() < changes;) {
    if (NowNs() > until_ns) return false;
    std::this_thread::yield();
  }
  return true;
}

Status Reduce(Runtime& runtime, const std::string& name) {
  std::vector<float> tensor(100, 1.0F);
  Operation* const operation = Allreduce(runtime, name, &tensor);
  HC_RETURN_IF_ERROR(runtime.Submit(operation, true));
  return Finish(runtime, operation);
}

class RuntimeSettings : public ::testing::TestWithParam<std::tuple<int, const char*>> {
 protected:
  static int size() { return std::get<0>(GetParam()); }
  static Texts Knobs() { return {{"waiter_drives", std::get<1>(GetParam())}}; }
};

TEST_P(RuntimeSettings, EveryRankGetsEveryChangeInOrder) {
  RunRanks(size(), Knobs(), [](int rank, Runtime& runtime) {
    constexpr uint64_t kChanges = 20;
    if (rank == 0) {
      EXPECT_EQ(runtime.settings().note, "");
    }
    for (uint64_t i = 1; i <= kChanges && rank == 0; ++i) {
      const Status status = runtime.Configure("note=" + std::to_string(i) + "\ncache=" + std::to_string(i % 2));
      ASSERT_TRUE(status.ok()) << status.message();
    }
    ASSERT_TRUE(Await(runtime, kChanges)) << "rank " << rank;
    EXPECT_EQ(runtime.settings().changes, kChanges);
    EXPECT_EQ(runtime.settings().note, std::to_string(kChanges));
    ASSERT_TRUE(Reduce(runtime, "end").ok());
    EXPECT_EQ(runtime.settings_changes(), kChanges);
  });
}

// Rank 0 changes the settings as soon as it is there, when other ranks may still put their runtimes together.
TEST_P(RuntimeSettings, AChangeMayComeBeforeTheOtherRanksAreReady) {
  for (int i = 0; i < 20; ++i) {
    RunRanks(size(), Knobs(), [](int rank, Runtime& runtime) {
      if (rank == 0) {
        ASSERT_TRUE(runtime.Configure("cycle_time=0.1\nfusion_threshold=1000\nnote=early").ok());
      }
      ASSERT_TRUE(Await(runtime, 1)) << "rank " << rank;
      EXPECT_EQ(runtime.settings().note, "early");
      ASSERT_TRUE(Reduce(runtime, "end").ok());
    });
  }
}

// One thread of rank 0 changes settings, others of all ranks reduce. Every result is right, and nothing hangs.
TEST_P(RuntimeSettings, SettingsChangeWhileThreadsReduce) {
  RunRanks(size(), Knobs(), [](int rank, Runtime& runtime) {
    constexpr uint64_t kChanges = 60;
    const auto work = [&](const std::string& name) {
      for (int step = 0; step < 40; ++step) {
        std::vector<std::vector<float>> tensors(4, std::vector<float>(10, static_cast<float>(step + rank)));
        std::vector<Operation*> operations;
        for (size_t i = 0; i < tensors.size(); ++i) {
          operations.push_back(Allreduce(runtime, name + std::to_string(i), &tensors[i]));
          ASSERT_TRUE(runtime.Submit(operations.back(), false).ok());
        }
        for (Operation* operation : operations) {
          const Status status = Finish(runtime, operation);
          ASSERT_TRUE(status.ok()) << "rank " << rank << ": " << status.message();
        }
        const float sum = static_cast<float>(size() * step + size() * (size() - 1) / 2);
        for (const auto& tensor : tensors) ASSERT_EQ(tensor, std::vector<float>(10, sum)) << "rank " << rank;
      }
    };
    std::thread other([&] { work("b"); });
    std::thread changer([&] {
      const std::vector<std::string> texts = {"cache=0",
                                              "fusion_threshold=64\ncycle_time=0.05",
                                              "cache=1",
                                              "table=allreduce=shm/oneshot;allreduce=loopback",
                                              "fusion_threshold=0",
                                              "table=",
                                              "fusion_threshold=134217728"};
      for (uint64_t i = 0; i < kChanges && rank == 0; ++i) {
        ASSERT_TRUE(runtime.Configure(texts[i % texts.size()] + "\nnote=" + std::to_string(i)).ok());
        if (i % 3 != 0) continue;
        ASSERT_TRUE(Await(runtime, i));
      }
    });
    work("a");
    other.join();
    changer.join();
    ASSERT_TRUE(Await(runtime, kChanges)) << "rank " << rank;
    EXPECT_EQ(runtime.settings().note, std::to_string(kChanges - 1));
    ASSERT_TRUE(Reduce(runtime, "end").ok()) << "no rank leaves before all have every change";
  });
}

// A thread of a rank that waits for nothing has to drive the round that carries the settings.
TEST_P(RuntimeSettings, AnIdleJobChangesThem) {
  RunRanks(size(), Knobs(), [](int rank, Runtime& runtime) {
    ASSERT_TRUE(Reduce(runtime, "begin").ok());
    if (rank == 0) {
      ASSERT_TRUE(runtime.Configure("fusion_threshold=5").ok());
    }
    ASSERT_TRUE(Await(runtime, 1)) << "rank " << rank;
    ASSERT_TRUE(Reduce(runtime, "end").ok());
  });
}

TEST_P(RuntimeSettings, ALongTableComesToAllRanks) {
  RunRanks(size(), Knobs(), [](int rank, Runtime& runtime) {
    std::string text = "note=n\ntable=";
    const std::string rule = "allreduce,3ranks:5-6=gone;";
    while (text.size() + rule.size() <= control::kMaxSettings) text += rule;
    if (rank == 0) {
      ASSERT_TRUE(runtime.Configure(text).ok());
      const Status status = runtime.Configure(text + rule);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find("at most 262144"), std::string::npos) << status.message();
    }
    ASSERT_TRUE(Await(runtime, 1)) << "rank " << rank;
    ASSERT_TRUE(Reduce(runtime, "end").ok());
  });
}

INSTANTIATE_TEST_SUITE_P(All, RuntimeSettings,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Values("0", "1")));

TEST(RuntimeSettings, OnlyRank0MayChangeThemAndMistakesAreErrorsThere) {
  RunRanks(2, {}, [](int rank, Runtime& runtime) {
    if (rank == 1) {
      const Status status = runtime.Configure("cache=0");
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find("rank 1 cannot change the settings of the job; call it on rank 0"),
                std::string::npos)
          << status.message();
    } else {
      for (const char* wrong : {"", "cache=2", "speed=9", "table=allreduc=shm", "table=*=shm;allgather:0-1=shm"}) {
        EXPECT_EQ(runtime.Configure(wrong).code(), StatusCode::kInvalidArgument) << wrong;
      }
      const Status table = runtime.Configure("table=allreduc=shm");
      EXPECT_EQ(table.message().find("the tuning table: rule 'allreduc=shm': "), 0u) << table.message();
    }
    ASSERT_TRUE(Reduce(runtime, "end").ok());
    EXPECT_EQ(runtime.settings_changes(), 0u);
  });
}

TEST(RuntimeSettings, AfterTheEndTheyAreErrorsWithTheReason) {
  std::atomic<bool> left{false};
  RunRanks(2, {}, [&](int rank, Runtime& runtime) {
    ASSERT_TRUE(Reduce(runtime, "begin").ok());
    if (rank == 1) {
      runtime.Stop();
      left = true;
      return;
    }
    while (!left) std::this_thread::yield();
    EXPECT_EQ(Reduce(runtime, "alone").code(), StatusCode::kShutDown);
    const Status status = runtime.Configure("cache=0");
    EXPECT_EQ(status.code(), StatusCode::kShutDown);
    EXPECT_NE(status.message().find("settings cannot change any more: rank 1 has shut down"), std::string::npos)
        << status.message();
    runtime.Stop();
    EXPECT_EQ(runtime.Configure("cache=0").code(), StatusCode::kShutDown);
    EXPECT_EQ(runtime.settings_changes(), 0u) << "queries still answer";
  });
}

TEST(RuntimeSettings, AnAbortEndsThem) {
  RunRanks(2, {}, [&](int rank, Runtime& runtime) {
    ASSERT_TRUE(Reduce(runtime, "begin").ok());
    if (rank == 1) {
      runtime.Abort("enough");
      return;
    }
    for (Status status; status.code() != StatusCode::kAborted;) status = Reduce(runtime, "alone");
    EXPECT_EQ(runtime.Configure("cache=0").code(), StatusCode::kAborted);
  });
}

// ---- backends

TEST(RuntimeBackends, AreThoseOfTheSet) {
  RunRanks(2, {},
           [](int rank, Runtime& runtime) {
             const auto names = [&](uint32_t set) {
               std::string text;
               for (const control::BackendTraits& backend : runtime.Backends(set)) text += backend.name + " ";
               return text;
             };
             EXPECT_EQ(names(0), "shm ");
             EXPECT_EQ(names(1), rank == 0 ? "loopback shm " : "") << "not a member";
             EXPECT_EQ(names(7), "");
             ASSERT_TRUE(Reduce(runtime, "end").ok());
             runtime.Stop();
             EXPECT_EQ(names(0), "shm ") << "as long as the object lives";
           },
           {{0}});
}

// ---- the log

TEST(RuntimeLog, HasOperationsThatEndedWhileItWasOn) {
  RunRanks(2, {{"inline_max", "0"}}, [](int rank, Runtime& runtime) {
    uint64_t lost = 0;
    ASSERT_TRUE(Reduce(runtime, "before").ok());
    runtime.log().Start(100);
    ASSERT_TRUE(Reduce(runtime, "a").ok());
    std::vector<float> tensor(3);
    Operation* const message = Message(runtime, rank == 0 ? wire::Op::kSend : wire::Op::kRecv, 1 - rank, 7, &tensor);
    ASSERT_TRUE(runtime.Submit(message, true).ok());
    ASSERT_TRUE(Finish(runtime, message).ok());
    Operation* const wrong = Allreduce(runtime, "wrong", &tensor);
    if (rank == 1) wrong->request.signature.priority = 1;
    ASSERT_TRUE(runtime.Submit(wrong, true).ok());
    EXPECT_EQ(Finish(runtime, wrong).code(), StatusCode::kMismatch);
    const auto records = runtime.log().Take(&lost);
    ASSERT_EQ(records.size(), 3u);
    EXPECT_EQ(lost, 0u);
    const observe::OperationRecord &first = records[0], &second = records[1], &third = records[2];
    EXPECT_EQ(first.name + " " + first.op + " " + first.reduce_op + " " + first.dtype + " " + first.backend + "/" +
                  first.algorithm + " " + first.chosen_by + first.error,
              "a allreduce sum float32 shm/auto order");
    EXPECT_EQ(first.bytes, 400);
    EXPECT_EQ(first.fused, 1u);
    EXPECT_TRUE(0 < first.submitted_ns && first.submitted_ns <= first.agreed_ns &&
                first.agreed_ns <= first.started_ns && first.started_ns <= first.ended_ns)
        << first.submitted_ns << " " << first.agreed_ns << " " << first.started_ns << " " << first.ended_ns;
    EXPECT_EQ(second.op, rank == 0 ? "send" : "recv");
    EXPECT_EQ(second.peer, 1 - rank);
    EXPECT_EQ(second.bytes, 12);
    EXPECT_NE(third.error.find("priority"), std::string::npos) << third.error;
    EXPECT_EQ(third.backend, "") << "nothing ran";
    runtime.log().Stop();
    ASSERT_TRUE(Reduce(runtime, "after").ok());
    EXPECT_TRUE(runtime.log().Take(&lost).empty());
  });
}

}  // namespace
}  // namespace horocache::runtime
