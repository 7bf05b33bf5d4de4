#include "base/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace horocache {
namespace {

namespace fs = std::filesystem;

class FilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "files-XXXXXX").string();
    folder_ = fs::canonical(mkdtemp(pattern.data())).string();
  }
  void TearDown() override { fs::remove_all(folder_); }
  void Write(const std::string& path) const { EXPECT_TRUE(MakeFile(path, 0600).ok()); }

  std::string folder_;
};

TEST_F(FilesTest, AnExistingFileIsReplacedAndNotOpened) {
  const std::string path = folder_ + "/new", precious = folder_ + "/precious";
  Write(precious);
  ASSERT_EQ(truncate(precious.c_str(), 5), 0);
  for (const char* kind : {"FIFO", "link", "file"}) {
    if (kind == std::string("FIFO")) {
      ASSERT_EQ(mkfifo(path.c_str(), 0666), 0);
    }
    if (kind == std::string("link")) fs::create_symlink(precious, path);
    const auto file = MakeFile(path, 0600);
    ASSERT_TRUE(file.ok()) << kind << ": " << file.status().ToString();
    struct stat about{};
    ASSERT_EQ(fstat(file->get(), &about), 0);
    EXPECT_TRUE(S_ISREG(about.st_mode) && about.st_nlink == 1) << kind;
    if (kind != std::string("file")) fs::remove(path);
  }
  EXPECT_EQ(fs::file_size(precious), 5u);
}

TEST_F(FilesTest, AFileThatCannotBeReplacedIsAnError) {
  fs::create_directory(folder_ + "/new");
  const Status status = MakeFile(folder_ + "/new", 0600).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("cannot remove"), std::string::npos) << status.message();
}

TEST_F(FilesTest, APathWithANulByteIsRefusedAndNothingIsRemoved) {
  const std::string precious = folder_ + "/precious";
  Write(precious);
  const std::string path = precious + std::string(1, '\0') + "x";
  for (const Status& status : {MakeFile(path, 0600).status(), ResolvePath(path).status()}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("NUL"), std::string::npos) << status.message();
  }
  EXPECT_TRUE(fs::exists(precious));
}

TEST_F(FilesTest, APathFollowsItsLinks) {
  Write(folder_ + "/real");
  fs::create_symlink(folder_ + "/real", folder_ + "/link");
  const std::string here = folder_ + "/here";
  fs::create_directory_symlink(folder_, here);
  EXPECT_EQ(*ResolvePath(folder_ + "/link"), folder_ + "/real");
  EXPECT_EQ(*ResolvePath(here + "/here" + "/link"), folder_ + "/real");
  EXPECT_EQ(*ResolvePath(here + "/none"), folder_ + "/none");
  EXPECT_FALSE(ResolvePath(folder_ + "/none" + "/none").ok());
}

TEST_F(FilesTest, ALinkOfAnotherUserInASharedFolderIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can play another user";
  Write(folder_ + "/real");
  const std::string shared = folder_ + "/shared", link = shared + "/link";
  fs::create_directory(shared);
  ASSERT_EQ(chmod(shared.c_str(), 01777), 0);
  fs::create_symlink(folder_ + "/real", link);
  EXPECT_TRUE(ResolvePath(link).ok()) << "one's own";
  ASSERT_EQ(lchown(link.c_str(), 12345, 12345), 0);
  EXPECT_EQ(ResolvePath(link).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace horocache
