// Small jobs for tests: ranks are threads, or forked children whose outcome comes back through a pipe.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fork.h"
#include "base/sanitized.h"
#include "net/bootstrap/bootstrap.h"

namespace horocache::net::testing {

// A temporary directory; the destructor checks that start-up left nothing in it.
class TestDirectory {
 public:
  TestDirectory() {
    char path[] = "/tmp/hc-net-XXXXXX";
    path_ = mkdtemp(path);
  }
  ~TestDirectory() {
    EXPECT_EQ(Entries(path_), 0) << "something was left in " << path_;
    rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }
  std::string Below(const std::string& name) const { return path_ + "/" + name; }

  static int Entries(const std::string& path) {
    int count = 0;
    DIR* directory = opendir(path.c_str());
    if (directory == nullptr) return 0;  // start-up removes the directory when it is empty
    while (const dirent* entry = readdir(directory)) count += entry->d_name[0] != '.' ? 1 : 0;
    closedir(directory);
    return count;
  }

 private:
  std::string path_;
};

inline BootstrapConfig Config(int rank, int size, const std::string& directory, double timeout_s = 60) {
  BootstrapConfig config;
  config.identity.rank = config.identity.local_rank = rank;
  config.identity.size = config.identity.local_size = size;
  config.identity.job = "test";
  config.handshake = {"1.2.3", 1, 1, "cache_capacity=1024\ncycle_time=1.0\n"};
  config.layout = {.ranks = size, .max_words = 8, .ring_bytes = 256, .data_bytes = 4096};
  config.directory = directory;
  config.timeout_ns = static_cast<int64_t>(timeout_s * 1e9);
  return config;
}

// Calls Bootstrap with every config at once, each in a thread.
inline std::vector<StatusOr<Peers>> BootstrapInThreads(const std::vector<BootstrapConfig>& configs) {
  std::vector<std::optional<StatusOr<Peers>>> slots(configs.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < configs.size(); ++i) {
    threads.emplace_back([&, i] { slots[i].emplace(Bootstrap(configs[i])); });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<StatusOr<Peers>> results;
  for (auto& slot : slots) results.push_back(std::move(*slot));
  return results;
}

inline int OpenDescriptors() { return TestDirectory::Entries("/proc/self/fd"); }

// A forked child that runs `body` and reports the result. The destructor kills and reaps a child that still runs.
class Child {
 public:
  explicit Child(const std::function<std::string()>& body) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    pid_ = Fork();
    if (pid_ == 0) {
      close(ends[0]);
      alarm(120);
      const std::string report = body();
      const bool written = write(ends[1], report.data(), report.size()) == static_cast<ssize_t>(report.size());
      _exit(written ? 0 : 1);
    }
    close(ends[1]);
    pipe_ = UniqueFd(ends[0]);
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)), pipe_(std::move(other.pipe_)) {}
  ~Child() {
    if (pid_ < 0) return;
    Signal(SIGKILL);
    Wait();
  }

  pid_t pid() const { return pid_; }
  void Signal(int signal) const { kill(pid_, signal); }
  int Wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }
  // Waits until the child ends; returns the result of `body`, or "" if the child was killed.
  std::string Report() {
    std::string text;
    char buffer[4096];
    for (ssize_t got = 0; (got = read(pipe_.get(), buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  pid_t pid_;
  UniqueFd pipe_;
};

// A counter in shared memory: each child adds one when it reaches the point for which the test waits.
class Count {
 public:
  Count()
      : count_(new (mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                   std::atomic<int>(0)) {}
  ~Count() { munmap(count_, sizeof(*count_)); }
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;

  void Add() { ++*count_; }
  void Await(int count) const {
    while (*count_ < count) usleep(500);
  }

 private:
  std::atomic<int>* const count_;
};

inline std::string Outcome(const StatusOr<Peers>& peers) { return peers.ok() ? "ok" : peers.status().ToString(); }

inline bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace horocache::net::testing
