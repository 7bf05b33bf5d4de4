#include "base/stillness.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "base/sanitized.h"
#include "base/thread.h"

namespace horocache {
namespace {

// A thread that waits as one of the user's program does, until the destructor ends it.
class Sleeper {
 public:
  explicit Sleeper(const char* name, std::chrono::milliseconds nap = std::chrono::milliseconds(0))
      : nap_(nap), thread_(name, [this] { Sleep(); }) {}
  ~Sleeper() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      end_ = true;
    }
    news_.notify_all();
    thread_.Join();
  }

 private:
  void Sleep() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!end_) {
      if (nap_.count() == 0) {
        news_.wait(lock);
      } else {
        news_.wait_for(lock, nap_);
      }
    }
  }

  const std::chrono::milliseconds nap_;
  std::mutex mutex_;
  std::condition_variable news_;
  bool end_ = false;
  NamedThread thread_;
};

bool Sleeps(int64_t syscall, const std::string& arguments, bool limited = false) {
  return SleepsUntilWoken(std::to_string(syscall) + " " + arguments, limited);
}

bool BecomesStill(Stillness* stillness, int looks, Stir allowed = Stir::kNone) {
  for (int i = 0; i < looks; ++i) {
    if (stillness->Look({ThisThread()}, {}, allowed)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

TEST(Stillness, RecognisesAThreadThatOnlyItsProcessCanWake) {
  const std::string mutex = "0x7f96cf850140 0x189 0x0 0x0 0x0 0xffffffff 0x7fff 0x7f90";
  const std::string of_mutex_for_a_time = "0x7f96cf850140 0x189 0x0 0x7f90c7 0x0 0xffffffff 0x7fff 0x7f90";
  const std::string shared = "0x7f96cf850140 0x109 0x0 0x0 0x0 0xffffffff 0x7fff 0x7f90";
  const std::string nanosleep = "0x0 0x0 0x7ef68fff 0x7ef68fff 0x0 0x7ef6 0x7fff 0x7f90";
  const std::string sleep_of_python = "0x1 0x1 0x7ef68fff 0x0 0x0 0x7ef6 0x7fff 0x7f90";
  for (const bool limited : {false, true}) {
    EXPECT_TRUE(Sleeps(SYS_futex, mutex, limited));
    EXPECT_EQ(Sleeps(SYS_futex, of_mutex_for_a_time, limited), limited);
    EXPECT_EQ(Sleeps(SYS_clock_nanosleep, nanosleep, limited), limited);
    EXPECT_FALSE(Sleeps(SYS_futex, shared, limited));
    EXPECT_FALSE(Sleeps(SYS_clock_nanosleep, sleep_of_python, limited));
    EXPECT_FALSE(Sleeps(SYS_read, "0xa 0x7f90e6d19a18 0x8 0x0 0x0 0x0 0x7fff 0x7f90", limited));
    EXPECT_FALSE(Sleeps(SYS_ppoll, "0x7f90e851ce10 0x2 0xffffffff 0x2 0x0 0x7ff 0x7fff 0x7f90", limited));
    EXPECT_FALSE(SleepsUntilWoken("running", limited));
    EXPECT_FALSE(SleepsUntilWoken("", limited));
  }
}

TEST(Stillness, IsWhenAllThreadsWaitForAnotherThread) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer may have threads of its own";
  const Sleeper one("one");
  Stillness stillness;
  {
    const Sleeper napping("hc-napping", std::chrono::milliseconds(1));  // a thread of horocache, by its name
    EXPECT_TRUE(BecomesStill(&stillness, 500));
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    NamedThread reader("reader", [&pipe] {
      char byte = 0;
      EXPECT_EQ(::read(pipe[0], &byte, 1), 0);
    });
    EXPECT_FALSE(BecomesStill(&stillness, 5)) << "another process may write into the pipe";
    ::close(pipe[1]);
    reader.Join();
    ::close(pipe[0]);
  }
  stillness.Forget();
  EXPECT_FALSE(stillness.Look({ThisThread()}, {}, Stir::kNone)) << "one look cannot tell";
  EXPECT_TRUE(BecomesStill(&stillness, 500));
}

TEST(Stillness, OfAThreadWithoutSubmissionsIsThatItUsesNoProcessor) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer may have threads of its own";
  Stillness stillness;
  const Sleeper napping("napping", std::chrono::milliseconds(20));
  EXPECT_FALSE(BecomesStill(&stillness, 5));
  EXPECT_TRUE(BecomesStill(&stillness, 500, Stir::kOfLookersOn));
  std::atomic<bool> end{false};
  NamedThread computing("computing", [&end] {
    while (!end.load()) {
    }
  });
  stillness.Forget();
  EXPECT_FALSE(BecomesStill(&stillness, 5, Stir::kOfLookersOn));
  end.store(true);
}

TEST(Stillness, OfTheMainThreadIsThatAnotherThreadMustWakeIt) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer may have threads of its own";
  std::atomic<int> looks{0};
  const auto look = [&looks](int most) {
    Stillness stillness;
    const bool still = BecomesStill(&stillness, most, Stir::kOfLookersOn);
    ++looks;
    return still;
  };
  {
    NamedThread looking("looking", [&] { EXPECT_FALSE(look(20)) << "it sleeps for a time"; });
    while (looks == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::mutex mutex;
  std::condition_variable news;
  bool end = false;
  const NamedThread looking("looking", [&] {
    EXPECT_TRUE(look(500)) << "it waits for this thread";
    const std::lock_guard<std::mutex> lock(mutex);
    end = true;
    news.notify_all();
  });
  std::unique_lock<std::mutex> lock(mutex);
  news.wait_for(lock, std::chrono::minutes(1), [&end] { return end; });
}

}  // namespace
}  // namespace horocache
