#include "program/library.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace horocache::program {
namespace {

// An allreduce of two ranks, which send to each other and add up.
std::vector<int64_t> PackedProgram() {
  std::vector<int64_t> words = {static_cast<int64_t>(kProgramMagic), 2, 1, 1, 1, 0, 1};
  for (int rank = 0; rank < 2; ++rank) {
    words.insert(words.end(), {2, 1, 0, 1, 1 - rank, 1 - rank, 0, 2});
    words.insert(words.end(), {0, 0, 1, 0, 0, -1, 0, 0});  // send
    words.insert(words.end(), {4, 0, 1, -1, 0, 0, 0, 0});  // receive, reduce, copy
  }
  return words;
}

void AddText(std::vector<int64_t>* words, const std::string& text) {
  words->push_back(static_cast<int64_t>(text.size()));
  std::vector<int64_t> body((text.size() + 7) / 8);
  std::memcpy(body.data(), text.data(), text.size());
  words->insert(words->end(), body.begin(), body.end());
}

std::vector<int64_t> PackedLibrary(wire::Op op = wire::Op::kAllreduce) {
  std::vector<int64_t> words = {0x31464c5250434348};
  AddText(&words, "allreduce=program/swap");
  words.push_back(1);
  AddText(&words, "swap");
  words.insert(words.end(), {static_cast<int64_t>(op), -1, 1, 1, 2, 3, 4096, 8, 64});
  const std::vector<int64_t> program = PackedProgram();
  words.push_back(static_cast<int64_t>(program.size() * sizeof(int64_t)));
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

StatusOr<std::shared_ptr<const Library>> DecodeWords(const std::vector<int64_t>& words) {
  return DecodeLibrary(std::as_bytes(std::span(words)));
}

TEST(Library, DecodesAPackedLibrary) {
  const auto library = DecodeWords(PackedLibrary());
  ASSERT_TRUE(library.ok()) << library.status().message();
  ASSERT_EQ((*library)->programs.size(), 1u);
  const LibraryProgram& one = (*library)->programs[0];
  EXPECT_EQ((*library)->rules, "allreduce=program/swap");
  EXPECT_EQ(one.name, "swap");
  EXPECT_EQ(one.protocol, Protocol::kLL);
  EXPECT_EQ(one.slots, 3);
  EXPECT_EQ(one.tile_bytes, 4096);
  EXPECT_EQ(one.min_bytes, 8);
  EXPECT_EQ(one.max_bytes, 64);
  EXPECT_TRUE(one.required);
  EXPECT_EQ(one.wirings.most_ends, 1);
  EXPECT_EQ(one.wirings.ranks[0].out[0].peer, 1);
}

TEST(Library, OfNoProgramsIsNone) {
  const auto library = DecodeLibrary({});
  ASSERT_TRUE(library.ok());
  EXPECT_EQ(*library, nullptr);
}

TEST(Library, DifferentContentsHaveDifferentSummaries) {
  std::vector<int64_t> words = PackedLibrary();
  const std::string first = (*DecodeWords(words))->Summary();
  EXPECT_EQ((*DecodeWords(words))->Summary(), first);
  words = PackedLibrary();
  words[words.size() - PackedProgram().size() - 2] = 65;  // max_bytes
  EXPECT_NE((*DecodeWords(words))->Summary(), first);
}

TEST(Library, RefusesBuffersThatTheOperationLacks) {
  const auto library = DecodeWords(PackedLibrary(wire::Op::kAlltoall));
  ASSERT_FALSE(library.ok());
  EXPECT_NE(library.status().message().find("'swap' has other buffers on rank 0 than alltoall has"), std::string::npos)
      << library.status().message();
}

TEST(Library, RefusesSumsInAnOperationWithoutReduction) {
  const auto library = DecodeWords(PackedLibrary(wire::Op::kBroadcast));
  ASSERT_FALSE(library.ok());
  EXPECT_NE(library.status().message().find("'swap'"), std::string::npos) << library.status().message();
}

TEST(Library, RefusesEveryOtherLengthAndSurvivesRandomWords) {
  const std::vector<int64_t> good = PackedLibrary();
  for (size_t length = 1; length < good.size(); ++length) {
    EXPECT_FALSE(DecodeWords({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)}).ok()) << length;
  }
  std::mt19937_64 random(3);
  int refused = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    std::vector<int64_t> words = good;
    const int64_t values[] = {-1, 0, 1, 2, 1000, INT64_MAX, INT64_MIN, static_cast<int64_t>(random())};
    words[1 + random() % (words.size() - 1)] = values[random() % 8];
    refused += DecodeWords(words).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 1500);
}

}  // namespace
}  // namespace horocache::program
