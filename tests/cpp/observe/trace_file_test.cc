#include "observe/trace_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/fork.h"

namespace horocache::observe {
namespace {

namespace fs = std::filesystem;

class TraceFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "trace-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    path_ = (folder_ / "trace.json").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  static std::string Read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  static bool Append(TraceFile* file, std::string elements) { return file->Append(&elements).ok(); }
  std::unique_ptr<TraceFile> Create(const std::string& path) {
    StatusOr<std::unique_ptr<TraceFile>> file = TraceFile::Create(path);
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    return std::move(*file);
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(TraceFileTest, IsACompleteArrayAfterEveryAppend) {
  auto file = Create(path_);
  EXPECT_EQ(Read(path_), "[\n]\n");
  std::string elements;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(Append(file.get(), std::to_string(i)));
    elements += (i == 0 ? "\n" : ",\n") + std::to_string(i);
    EXPECT_EQ(Read(path_), "[" + elements + "\n]\n");
  }
  EXPECT_TRUE(file->exchanges());
  file.reset();
  EXPECT_EQ(Read(path_), "[" + elements + "\n]\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "the second copy is gone";
}

TEST_F(TraceFileTest, AnOpenFileStaysComplete) {
  auto file = Create(path_);
  ASSERT_TRUE(Append(file.get(), "1"));
  std::ifstream reader(path_);  // opens the file now and reads it later
  ASSERT_TRUE(Append(file.get(), "2"));
  std::ostringstream text;
  text << reader.rdbuf();
  EXPECT_EQ(text.str(), "[\n1\n]\n");
}

TEST_F(TraceFileTest, AKillAtAnyMomentLeavesACompleteFileAndTheNextStartCleansUp) {
  const std::string element(20'000, '1');
  Create(path_).reset();  // the file of an earlier run
  for (int kill_us = 0; kill_us < 20; ++kill_us) {
    std::array<int, 2> begun{};
    ASSERT_EQ(pipe(begun.data()), 0);
    const pid_t child = Fork();
    if (child == 0) {
      static_cast<void>(!write(begun[1], "x", 1));
      auto file = TraceFile::Create(path_);
      while (file.ok() && Append(file->get(), element)) {
      }
      _exit(1);
    }
    char byte = 0;
    ASSERT_EQ(read(begun[0], &byte, 1), 1);
    close(begun[0]);
    close(begun[1]);
    usleep(static_cast<useconds_t>(137 * kill_us));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    const std::string text = Read(path_);
    ASSERT_TRUE(text.starts_with("[\n") && text.ends_with("\n]\n")) << text.size();
    if (text != "[\n]\n") {  // the first element has no comma before it
      ASSERT_EQ((text.size() - 3) % (element.size() + 2), 0u);
    }
  }
  Create(path_).reset();
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(TraceFileTest, AUsersFileWithTheNameOfTheSecondCopyStays) {
  const std::string spare = path_ + ".spare";
  for (const std::string text : {"notes", "[\n  1\n]\n"}) {
    std::ofstream(spare) << text;
    const auto refused = TraceFile::Create(path_);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_NE(refused.status().message().find(spare), std::string::npos) << refused.status().ToString();
    EXPECT_EQ(Read(spare), text);
    EXPECT_FALSE(fs::exists(path_));
  }
  fs::remove(spare);
  fs::create_symlink(folder_ / "elsewhere", spare);
  EXPECT_FALSE(TraceFile::Create(path_).ok());
  EXPECT_TRUE(fs::is_symlink(spare));
}

TEST_F(TraceFileTest, ALinkStaysALink) {
  fs::create_symlink("target.json", folder_ / "trace.json");
  std::ofstream(folder_ / "target.json") << "old";
  auto file = Create(path_);
  ASSERT_TRUE(Append(file.get(), "1"));
  EXPECT_TRUE(fs::is_symlink(path_));
  EXPECT_EQ(Read(folder_ / "target.json"), "[\n1\n]\n");
}

TEST_F(TraceFileTest, AFileThatCannotBeWrittenIsAnErrorThatNamesIt) {
  const auto why = [](const std::string& path) { return TraceFile::Create(path).status().message(); };
  const std::string missing = folder_ / "missing" / "x.json";
  EXPECT_EQ(why(missing), "cannot open the folder of '" + missing + "': No such file or directory");
  EXPECT_EQ(why(folder_), "cannot open '" + folder_.string() + "': Is a directory");
  EXPECT_EQ(why("/dev/full"), "cannot write '/dev/full': No space left on device");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(why(fifo), "'" + fifo + "' is a FIFO; name a file");
}

TEST_F(TraceFileTest, ADeviceHasOneCopy) {
  auto file = Create("/dev/null");
  EXPECT_FALSE(file->exchanges());
  EXPECT_TRUE(Append(file.get(), "1"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(TraceFileTest, APathWithANulByteRemovesNothing) {
  std::ofstream(path_) << "precious";
  EXPECT_EQ(TraceFile::Create(path_ + std::string(1, '\0') + "x").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Read(path_), "precious");
}

TEST_F(TraceFileTest, NothingIsWrittenAfterTheProgramHasClosedTheDescriptor) {
  auto file = Create(path_);
  const fs::path mine = folder_ / "mine";
  for (int fd = 3; fd < 64; ++fd) {
    std::error_code none;
    const fs::path target = fs::read_symlink("/proc/self/fd/" + std::to_string(fd), none);
    if (!target.string().starts_with(folder_.string())) continue;
    close(fd);
    ASSERT_EQ(open(mine.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600), fd);
  }
  EXPECT_FALSE(Append(file.get(), "1"));
  EXPECT_EQ(Read(mine.string()), "");
}

}  // namespace
}  // namespace horocache::observe
