#include "observe/stack_text.h"

#include <gtest/gtest.h>

namespace horocache::observe {
namespace {

constexpr const char* kDump = R"(Thread 0x00007f01 (most recent call first):
  File "/usr/lib/threading.py", line 324 in wait
  File "/usr/lib/queue.py", line 180 in get

Thread 0x00007f02 (most recent call first):
  <no Python frame>

Current thread 0x00007f03 (most recent call first):
  File "lib/horocache/ops.py", line 7 in synchronize
  File "me/train.py", line 40 in evaluate
  File "me/train.py", line 80 in <module>
)";

TEST(StackSummary, NamesTheFirstPlaceOutsideTheLibraryAndShowsTheCalls) {
  EXPECT_EQ(StackSummary(kDump, "lib/horocache/"),
            "at train.py:40 in evaluate; innermost call first:\n"
            "    lib/horocache/ops.py:7 in synchronize\n"
            "    me/train.py:40 in evaluate\n"
            "    me/train.py:80 in <module>\n"
            "  another thread:\n"
            "    /usr/lib/threading.py:324 in wait\n"
            "    /usr/lib/queue.py:180 in get");
}

TEST(StackSummary, OfLibraryCallsOnlyIsTheInnermostCall) {
  const std::string text =
      StackSummary("Current thread 0x1 (most recent call first):\n  File \"own/a\", line 1 in f", "own/");
  EXPECT_EQ(text, "at a:1 in f; innermost call first:\n    own/a:1 in f");
}

TEST(StackSummary, IsBounded) {
  std::string dump = "Current thread 0x1 [main] (most recent call first):\n";
  for (int i = 0; i < 100; ++i) dump += "  File \"deep.py\", line " + std::to_string(i) + " in again\n";
  const std::string text = StackSummary(dump, "");
  EXPECT_NE(text.find("deep.py:23 in again\n    and 76 calls more"), std::string::npos) << text;
  EXPECT_EQ(text.find("deep.py:24"), std::string::npos);
}

TEST(StackSummary, OfATextWithoutAStackIsEmpty) {
  EXPECT_EQ(StackSummary("", ""), "");
  EXPECT_EQ(StackSummary("  File \"a\", line 1 in f\n", ""), "");
  EXPECT_EQ(StackSummary("Current thread 0x1 (most recent call first):\n  File \"a\", line", ""), "");
}

}  // namespace
}  // namespace horocache::observe
