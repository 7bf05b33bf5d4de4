#include "observe/timeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

namespace horocache::observe {
namespace {

namespace fs = std::filesystem;

class TimelineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "timeline-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Read(const std::string& name) {
    std::ostringstream text;
    text << std::ifstream(folder_ / name).rdbuf();
    return text.str();
  }
  static int Count(const std::string& text, const std::string& part) {
    int count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
  }
  static OperationTrace Trace(std::string_view name) {
    OperationTrace trace;
    trace.name = name;
    trace.op = "allreduce";
    trace.submitted_ns = trace.agreed_ns = trace.ended_ns = 5;
    return trace;
  }

  fs::path folder_;
  std::vector<std::string> warnings_;
  const std::shared_ptr<Timeline> shared_ =
      Timeline::Make([this](const std::string& text) { warnings_.push_back(text); });
  Timeline& timeline_ = *shared_;
};

TEST_F(TimelineTest, HasTheExchangesOfLayersOfExpertsWhileItIsOn) {
  timeline_.AddExchange("experts of layer", "BEFORE", "{}", 1, 2);
  ASSERT_TRUE(timeline_.Start(folder_ / "t.json", false, {}).ok());
  timeline_.AddExchange("experts of layer", "EXCHANGE", "{\"round\":1}", 1'000, 2'000);
  timeline_.Stop();
  const std::string text = Read("t.json");
  EXPECT_EQ(Count(text, "BEFORE"), 0);
  EXPECT_EQ(Count(text, "\"EXCHANGE\""), 1);
  EXPECT_EQ(Count(text, "\"args\":{\"round\":1}"), 1);
}

TEST_F(TimelineTest, StartsAndStopsAndHasTheRecordsInBetween) {
  EXPECT_FALSE(timeline_.on());
  EXPECT_FALSE(timeline_.Stop());
  for (const char* name : {"first.json", "second.json"}) {
    ASSERT_TRUE(timeline_.Start(folder_ / name, true, {}).ok());
    EXPECT_TRUE(timeline_.on() && timeline_.marks_rounds());
    EXPECT_EQ(timeline_.Start(folder_ / name, true, {}).code(), StatusCode::kInvalidArgument);
    std::thread driver([&] {
      for (int i = 0; i < 1000; ++i) {
        timeline_.Add(Trace("tensor " + std::to_string(i)));  // the name dies here
        timeline_.MarkRound(0, static_cast<uint64_t>(i), i);
      }
    });
    driver.join();
    EXPECT_TRUE(timeline_.Stop());
    EXPECT_FALSE(timeline_.on());
    const std::string text = Read(name);
    EXPECT_EQ(Count(text, "\"name\":\"ALLREDUCE\""), 1000);
    EXPECT_EQ(Count(text, "\"name\":\"tensor 999\""), 1);
    EXPECT_EQ(Count(text, "CYCLE_START"), 1000);
    EXPECT_EQ(Count(text, "DROPPED"), 0);
  }
  EXPECT_TRUE(warnings_.empty());
}

// The file and the list of the program are on and off by themselves.
TEST_F(TimelineTest, RecordsGoToTheFileAndToTheLogAsTheyAreOn) {
  uint64_t lost = 0;
  const auto names = [&] {
    std::string text;
    for (const OperationRecord& record : timeline_.log().Take(&lost)) text += record.name + " ";
    return text;
  };
  timeline_.Add(Trace("nowhere"));
  timeline_.log().Start(10);
  EXPECT_TRUE(timeline_.on()) << "somebody has a use for records";
  EXPECT_FALSE(timeline_.Stop()) << "but there is no file";
  timeline_.Add(Trace("log"));
  ASSERT_TRUE(timeline_.Start(folder_ / "t.json", false, {}).ok());
  timeline_.Add(Trace("both"));
  EXPECT_EQ(names(), "log both ");
  timeline_.log().Stop();
  EXPECT_TRUE(timeline_.on());
  timeline_.Add(Trace("file"));
  EXPECT_TRUE(timeline_.Stop());
  EXPECT_FALSE(timeline_.on());
  EXPECT_EQ(names(), "");
  const std::string text = Read("t.json");
  EXPECT_EQ(Count(text, "\"name\":\"both\"") + Count(text, "\"name\":\"file\""), 2);
  EXPECT_EQ(Count(text, "\"name\":\"log\"") + Count(text, "nowhere"), 0);
}

TEST_F(TimelineTest, RecordsThatComeTooFastAreDroppedAndCounted) {
  ASSERT_TRUE(timeline_.Start(folder_ / "t.json", false, {}).ok());
  constexpr int kMany = 700'000;
  for (int i = 0; i < kMany; ++i) timeline_.MarkRound(0, 0, 1);
  timeline_.Stop();
  const std::string text = Read("t.json");
  int dropped = 0;
  const std::string key = "\"records\":";
  for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
    dropped += std::stoi(text.substr(at + key.size()));
  }
  EXPECT_EQ(Count(text, "CYCLE_START") + dropped, kMany);
}

TEST_F(TimelineTest, ATimelineThatFailedCanBeStartedAgain) {
  // The folder is removed, so the timeline cannot exchange the copies of its file.
  const fs::path folder = folder_ / "gone";
  fs::create_directory(folder);
  ASSERT_TRUE(timeline_.Start(folder / "t.json", false, {}).ok());
  fs::remove_all(folder);
  timeline_.Add(Trace("lost"));
  while (timeline_.on()) std::this_thread::yield();
  ASSERT_TRUE(timeline_.Start(folder_ / "t.json", false, {}).ok());
  timeline_.Add(Trace("kept"));
  timeline_.Stop();
  EXPECT_EQ(Count(Read("t.json"), "\"name\":\"kept\""), 1);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find("the timeline ends here: cannot exchange the copies of"), std::string::npos);
}

// The timeline's thread hangs in its first warning, as it would in a call into a file system that does not answer.
TEST_F(TimelineTest, StopDoesNotWaitForAThreadThatHangs) {
  const auto warnings = std::make_shared<std::vector<std::string>>();
  const auto released = std::make_shared<std::atomic<bool>>(false);
  const auto hangs = std::make_shared<std::atomic<bool>>(false);
  const std::shared_ptr<Timeline> timeline = Timeline::Make(
      [=](const std::string& text) {
        if (!hangs->exchange(true)) {
          while (!*released) std::this_thread::yield();
        } else {
          warnings->push_back(text);
        }
      },
      1'000'000);
  ASSERT_TRUE(timeline->Start(folder_ / "t.json", false, {}).ok());
  timeline->Add(Trace("tensor"));
  fs::remove_all(folder_);
  while (!*hangs) std::this_thread::yield();
  timeline->Stop();
  ASSERT_EQ(warnings->size(), 1u);
  EXPECT_EQ(warnings->front(), "the timeline lacks its end: its file system has not answered for 0.001 s");
  const Status again = timeline->Start(folder_ / "t.json", false, {});
  EXPECT_NE(again.message().find("is on a file system that does not answer"), std::string::npos) << again.message();
  *released = true;
}

TEST_F(TimelineTest, AFileThatCannotBeWrittenIsAnErrorAtTheStart) {
  const Status full = timeline_.Start("/dev/full", false, {});
  EXPECT_EQ(full.message(), "cannot write '/dev/full': No space left on device");
  EXPECT_FALSE(timeline_.on());
  ASSERT_TRUE(timeline_.Start(folder_ / "t.json", false, {}).ok()) << "another one can";
}

}  // namespace
}  // namespace horocache::observe
