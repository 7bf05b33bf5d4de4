#include "runtime/diagnostics/record_file.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <string_view>
#include <thread>

#include "base/duration.h"

namespace horocache::runtime {
namespace {

// A file system that answers when the test sets `answers`. Its calls may outlive the record file, so the state is
// global.
std::atomic<bool> answers{false};
std::atomic<int> calls{0}, returned{0};

Status Hang(const std::string&, std::string_view) {
  ++calls;
  while (!answers) std::this_thread::yield();
  ++returned;
  return Status::Ok();
}

TEST(RecordFile, WaitsOnceForAFileSystemThatDoesNotAnswer) {
  RecordFile file("record.json", kNsPerMs, Hang);
  const std::string late = "the file system has not answered for 0.001 s";
  EXPECT_EQ(file.Replace("first").message(), late);
  while (calls == 0) std::this_thread::yield();
  EXPECT_EQ(file.Replace("second").message(), late);
  EXPECT_EQ(calls, 1) << "no second thread hangs there";
  answers = true;
  while (returned == 0) std::this_thread::yield();
  Status status = file.Replace("third");  // the first call may not have noted its end yet
  while (!status.ok() && calls == 1) status = file.Replace("third");
  EXPECT_GE(calls, 2) << "a file system that answers again is not used again";
}

TEST(RecordFile, AHangingCallOutlivesItsFile) {
  answers = false;
  const int before = returned;
  EXPECT_FALSE(RecordFile("record.json", kNsPerMs, Hang).Replace("bytes").ok());
  answers = true;
  while (returned == before) std::this_thread::yield();
}

}  // namespace
}  // namespace horocache::runtime
