#include "runtime/diagnostics/cause_note.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace horocache::runtime {
namespace {

class CauseNoteTest : public testing::Test {
 protected:
  CauseNoteTest() { folder_ = mkdtemp(pattern_); }
  ~CauseNoteTest() override { std::filesystem::remove_all(folder_); }

  // The text of the note without its time.
  std::string NoteText() const {
    std::ifstream file(folder_ + "/cause.3");
    std::stringstream text;
    text << file.rdbuf();
    const std::string all = text.str();
    return all.empty() ? "" : all.substr(0, all.find(' ')) + ": " + all.substr(all.find('\n') + 1);
  }

  char pattern_[32] = "/tmp/hc-cause-XXXXXX";
  std::string folder_;
};

TEST_F(CauseNoteTest, HasTheFirstFailure) {
  CauseNote note(folder_, 3);
  note.Failed({StatusCode::kMismatch, "shapes differ"});
  note.Failed({StatusCode::kInvalidArgument, "no such thing"});
  EXPECT_EQ(NoteText(), "") << "the rank may go on after its own error";
  note.Failed({StatusCode::kAborted, "rank 1 aborted"});
  note.Raised("what follows from that");
  note.Failed({StatusCode::kPeerLost, "rank 1 has gone"});
  EXPECT_EQ(NoteText(), "follows: rank 1 aborted");
}

TEST_F(CauseNoteTest, TheRanksOwnAbortIsNoConsequence) {
  CauseNote note(folder_, 3);
  note.Raised("it raised");
  note.Failed({StatusCode::kAborted, "rank 3 aborted"});
  EXPECT_EQ(NoteText(), "raised: it raised");
}

TEST_F(CauseNoteTest, ANewRuntimeReplacesTheNoteOfTheLastOne) {
  CauseNote(folder_, 3).Failed({StatusCode::kShutDown, "rank 1 left"});
  EXPECT_EQ(NoteText(), "follows: rank 1 left");
  CauseNote note(folder_, 3);
  EXPECT_EQ(NoteText(), "");
  note.Raised(std::string(100'000, 'x'));
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/cause.3"), 4096);
}

TEST_F(CauseNoteTest, AMissingFolderAndAMissingPermissionAreIgnored) {
  CauseNote("", 0).Raised("without a reader");
  CauseNote(folder_ + "/gone", 3).Raised("without a reader");
  EXPECT_EQ(NoteText(), "");
}

}  // namespace
}  // namespace horocache::runtime
