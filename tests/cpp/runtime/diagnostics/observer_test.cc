#include "runtime/diagnostics/observer.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "base/clock.h"

namespace horocache::runtime {
namespace {

struct Folder {
  Folder() { path = mkdtemp(name); }
  ~Folder() { std::filesystem::remove_all(path); }
  char name[32] = "/tmp/hc-observer-XXXXXX";
  std::string path;
};

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Returns the answer of the observer with this socket; empty if no observer listens.
std::string Ask(const std::string& name) {
  const UniqueFd asking(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (connect(asking.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return "";
  std::string all;
  char bytes[64];
  for (ssize_t got = 0; (got = read(asking.get(), bytes, sizeof(bytes))) > 0;)
    all.append(bytes, static_cast<size_t>(got));
  return all;
}

// The name that an observer gives its socket: the base and a descriptor.
std::string NameBelow(const std::string& base) {
  for (int fd = 0; fd < 256; ++fd) {
    const std::string name = base + "." + std::to_string(fd);
    if (!Ask(name).empty()) return name;
  }
  return "";
}

struct Recorder {
  std::atomic<int> records{0}, stacks{0}, logged_sets{0}, warnings{0};

  Observer::Callbacks Callbacks() {
    return {.record =
                [this](const std::string& why, const std::string& where) {
                  ++records;
                  return why + " at " + where;
                },
            .stacks =
                [this] {
                  ++stacks;
                  return std::string("here");
                },
            .log_stacks =
                [this](uint32_t set, const std::string& where) {
                  EXPECT_EQ(where, "here");
                  logged_sets += static_cast<int>(set);
                },
            .warn = [this](const std::string&) { ++warnings; }};
  }
};

TEST(Observer, AnswersRequestsUntilItStops) {
  Recorder recorder;
  const std::string base = "horocache-test." + std::to_string(getpid());
  Observer observer(base, "", recorder.Callbacks());
  const std::string name = NameBelow(base);
  EXPECT_EQ(Ask(name), "a dump was requested at here");
  observer.Stop();
  EXPECT_EQ(Ask(name), "");
}

TEST(Observer, WritesTheFirstErrorAtOnceAndLaterErrorsOnceASecond) {
  const Folder folder;
  const std::string path = folder.path + "/record.json";
  Recorder recorder;
  const int64_t started_ns = NowNs();
  Observer observer("", path, recorder.Callbacks());
  observer.LogRecordPath();
  EXPECT_EQ(recorder.warnings, 0) << "a warning before the first error";
  observer.NoteError({StatusCode::kStall, "first"});
  EXPECT_EQ(recorder.warnings, 0) << "a warning although the program may go on";
  observer.LogRecordPath();
  EXPECT_EQ(recorder.warnings, 1);
  while (Read(path).empty()) std::this_thread::yield();
  EXPECT_EQ(Read(path), "Stall: first at here");
  for (int i = 0; i < 1000; ++i) observer.NoteError({StatusCode::kStall, "again"});
  observer.Stop();
  EXPECT_EQ(Read(path), "Stall: again at here") << "the last error is not written at the end";
  EXPECT_LE(recorder.records, 2 + (NowNs() - started_ns) / kNsPerS) << "one of each full second, and one at the end";
  EXPECT_EQ(recorder.warnings, 1);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path)) EXPECT_EQ(entry.path(), path);
}

TEST(Observer, AFileWithTheNameOfTheNewRecordIsNotOpened) {
  const Folder folder;
  const std::string path = folder.path + "/record.json";
  ASSERT_EQ(mkfifo((path + ".new").c_str(), 0666), 0);  // opening it would wait for a reader
  Recorder recorder;
  {
    Observer observer("", path, recorder.Callbacks());
    observer.NoteError({StatusCode::kStall, "first"});
  }
  EXPECT_EQ(Read(path), "Stall: first at here");
  EXPECT_TRUE(std::filesystem::is_regular_file(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
}

TEST(Observer, TheNameOfAFolderIsEscapedInTheLog) {
  Recorder recorder;
  std::string all;
  Observer::Callbacks callbacks = recorder.Callbacks();
  callbacks.warn = [&](const std::string& text) { all += text; };
  {
    Observer observer("", "/proc/no\nwhere/record.json", std::move(callbacks));
    observer.NoteError({StatusCode::kPeerLost, "first"});
  }
  EXPECT_EQ(all.find('\n'), std::string::npos) << all;
  EXPECT_NE(all.find("there is no flight record"), std::string::npos) << all;
}

TEST(Observer, ARecordThatCannotBeWrittenIsOneWarning) {
  Recorder recorder;
  Observer::Callbacks callbacks = recorder.Callbacks();
  // The observer's thread waits until NoteError() has returned. Otherwise its warning could already be in `before`.
  std::atomic<bool> returned{false};
  std::string before, all;
  callbacks.record = [&](const std::string&, const std::string&) {
    while (!returned) std::this_thread::yield();
    return std::string("record");
  };
  callbacks.warn = [&](const std::string& text) { all += text + '\n'; };
  {
    Observer observer("", "/proc/nowhere/record.json", std::move(callbacks));
    observer.NoteError({StatusCode::kPeerLost, "first"});
    before = all;
    returned = true;
    observer.Stop();
    observer.NoteError({StatusCode::kPeerLost, "second"});
  }
  EXPECT_NE(before.find("the events before this error are written to"), std::string::npos) << before;
  EXPECT_EQ(std::ranges::count(before, '\n'), 1) << "the path of the record is not logged before the error";
  EXPECT_NE(all.find("there is no flight record"), std::string::npos) << all;
  EXPECT_EQ(std::ranges::count(all, '\n'), 2) << all;
}

TEST(Observer, SendsTheStackToEachSetThatAsks) {
  Recorder recorder;
  Observer observer("", "", recorder.Callbacks());
  observer.AskStacks(1);
  observer.AskStacks(20);
  while (recorder.logged_sets < 21) std::this_thread::yield();
  EXPECT_EQ(recorder.logged_sets, 21);
  EXPECT_LE(recorder.stacks, 2);
  observer.NoteError({StatusCode::kStall, "nowhere to write"});
  observer.Stop();
  EXPECT_EQ(recorder.records, 0);
}

}  // namespace
}  // namespace horocache::runtime
