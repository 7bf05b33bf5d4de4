// The loader of NCCL, and communicators, on the fakes.
#include "cuda/nccl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cuda/fake_driver.h"
#include "cuda/nccl_communicator.h"

namespace horocache::cuda {
namespace {

using testing::FakeDriver;

constexpr int64_t kPatienceNs = 30 * kNsPerS;

std::string Fake(int version) { return HC_FAKE_NCCL_FOLDER "/libnccl_fake_" + std::to_string(version) + ".so.2"; }

NcclSearch Named(const std::string& library) {
  NcclSearch search;
  search.library = library;
  return search;
}

std::shared_ptr<const Nccl> Load(int version = 23007) {
  StatusOr<std::shared_ptr<const Nccl>> nccl = Nccl::Load(Named(Fake(version)));
  EXPECT_TRUE(nccl.ok()) << nccl.status().message();
  return *nccl;
}

TEST(NcclTest, LoadsTheNamedLibraryAndKnowsItsVersion) {
  const auto nccl = Load(22809);
  EXPECT_EQ(nccl->version(), 22809);
  EXPECT_EQ(Nccl::VersionText(nccl->version()), "2.28.9");
  EXPECT_EQ(std::filesystem::path(nccl->path()).filename(), "libnccl_fake_22809.so.2");
}

TEST(NcclTest, TheConfigurationIsOneThatTheVersionKnows) {
  for (const auto& [version, bytes] : {std::pair{21403, 24}, {21801, 48}, {22203, 48}, {22703, 72}, {23203, 72}}) {
    const NcclConfig config = Load(version)->Config();
    EXPECT_EQ(config.size, static_cast<size_t>(bytes)) << version;
    EXPECT_LE(config.version, static_cast<unsigned>(version));
  }
}

TEST(NcclTest, AnOldLibraryIsRefusedByItsVersion) {
  const auto old = Nccl::Load(Named(Fake(21200)));
  ASSERT_FALSE(old.ok());
  EXPECT_EQ(old.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(old.status().message().find("has version 2.12.0; horocache needs 2.14.3 or newer"), std::string::npos)
      << old.status().message();
}

TEST(NcclTest, AMissingLibraryIsAnErrorThatNamesItAndTheKnob) {
  const auto missing = Nccl::Load(Named("libnccl-nowhere.so.2"));
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.status().message().find("HOROCACHE_NCCL_LIBRARY='libnccl-nowhere.so.2'"), std::string::npos);
}

TEST(NcclTest, FoldersAreSearchedBeforeTheSystemAndASecondCopyIsRefused) {
  HC_IN_NEW_PROCESS({   // a library is never unloaded
    FakeDriver::Get();  // which the copy of the fake NCCL would not find
    const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "hc_nccl_folder";
    std::filesystem::create_directories(folder);
    const std::filesystem::path file = folder / "libnccl.so.2";
    std::filesystem::copy_file(Fake(22809), file, std::filesystem::copy_options::overwrite_existing);
    NcclSearch search;
    search.folders.push_back("/nowhere");
    search.folders.push_back(folder.string());
    const auto found = Nccl::Load(search);
    EXPECT_TRUE(found.ok()) << found.status().message();
    if (!found.ok()) std::_Exit(1);
    EXPECT_EQ((*found)->path(), std::filesystem::canonical(file).string());
    EXPECT_TRUE(Nccl::Load(Named("libnccl.so.2")).ok());
    EXPECT_TRUE(Nccl::Load(Named(file.string())).ok());
    const auto other = Nccl::Load(Named(Fake(22809)));
    EXPECT_FALSE(other.ok());
    EXPECT_NE(other.status().message().find("is not the NCCL that this process has loaded already"), std::string::npos);
    std::filesystem::remove_all(folder);
  });
}

TEST(NcclTest, AnErrorHasTheCallItsCodeAndNcclsText) {
  const auto nccl = Load();
  EXPECT_TRUE(nccl->Check(kNcclSuccess, "ncclAllReduce").ok());
  const Status failed = nccl->Check(5, "ncclAllReduce");
  EXPECT_EQ(failed.code(), StatusCode::kAborted);
  EXPECT_EQ(failed.message().find("ncclAllReduce failed with 5 ("), 0u) << failed.message();
  EXPECT_EQ(nccl->Check(99, "ncclAllReduce").message().find("ncclAllReduce failed with 99"), 0u);
}

// ---- communicators

NcclCommunicator::Place Place(int rank, int ranks) { return {rank, ranks, "test"}; }

std::vector<std::unique_ptr<NcclCommunicator>> ConnectRanks(int ranks) {
  const auto nccl = Load();
  NcclUniqueId id = {};
  EXPECT_EQ(nccl->GetUniqueId(&id), kNcclSuccess);
  std::vector<std::unique_ptr<NcclCommunicator>> made;
  for (int rank = 0; rank < ranks; ++rank) {
    made.push_back(std::make_unique<NcclCommunicator>(nccl, FakeDriver::Get().device(), id, Place(rank, ranks)));
  }
  const int64_t deadline_ns = NowNs() + kPatienceNs;
  const auto connected = [](const auto& one) { return one->HasConnected(); };
  while (!std::ranges::all_of(made, connected) && NowNs() < deadline_ns) std::this_thread::yield();
  return made;
}

TEST(NcclCommunicatorTest, ConnectsRanksAndDestroysThemTogether) {
  HC_IN_NEW_PROCESS({
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    auto ranks = ConnectRanks(2);
    for (const auto& rank : ranks) {
      EXPECT_TRUE(rank->HasConnected());
      EXPECT_TRUE(rank->connected().ok()) << rank->connected().message();
      EXPECT_TRUE(rank->AsyncError().ok());
    }
    std::thread other([&] { ranks[1].reset(); });
    ranks[0].reset();
    other.join();
    EXPECT_EQ(FakeDriver::Get().Calls("ncclCommDestroy"), 2u);
    EXPECT_EQ(FakeDriver::Get().Calls("ncclCommAbort"), 0u);
  });
}

TEST(NcclCommunicatorTest, RanksThatShareADeviceAreRefusedWithNcclsReason) {
  HC_IN_NEW_PROCESS({
    for (const auto& rank : ConnectRanks(2)) {
      EXPECT_EQ(rank->connected().code(), StatusCode::kAborted);
      EXPECT_NE(rank->connected().message().find("Multiple Ranks are using the same GPU"), std::string::npos)
          << rank->connected().message();
    }
  });
}

TEST(NcclCommunicatorTest, AnAbortEndsWithinItsTime) {
  HC_IN_NEW_PROCESS({
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    auto ranks = ConnectRanks(2);
    for (const auto& rank : ranks) {
      rank->StartAbort();
      rank->StartAbort();  // once is enough
    }
    for (const auto& rank : ranks) EXPECT_TRUE(rank->AbortedBy(NowNs() + kPatienceNs));
    EXPECT_EQ(FakeDriver::Get().Calls("ncclCommAbort"), 2u);
    ranks.clear();
    EXPECT_EQ(FakeDriver::Get().Calls("ncclCommDestroy"), 0u);
  });
}

TEST(NcclCommunicatorTest, AnAbortThatHangsIsLeftAlone) {
  HC_IN_NEW_PROCESS({
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    setenv("FAKE_GPU_FAULTS", "ncclCommAbort:1:hang", 1);
    auto ranks = ConnectRanks(1);
    ranks[0]->StartAbort();
    EXPECT_FALSE(ranks[0]->AbortedBy(NowNs() + 50 * kNsPerMs));
    ranks.clear();
  });
}

// A rank that gives up while it connects aborts what connects too late.
TEST(NcclCommunicatorTest, WhatConnectsTooLateIsAborted) {
  HC_IN_NEW_PROCESS({
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    const auto nccl = Load();
    NcclUniqueId id = {};
    EXPECT_EQ(nccl->GetUniqueId(&id), kNcclSuccess);
    const auto device = FakeDriver::Get().device();
    auto first = std::make_unique<NcclCommunicator>(nccl, device, id, Place(0, 2));
    first->StartAbort();
    EXPECT_TRUE(first->AbortedBy(0)) << "there is nothing to abort yet";
    NcclCommunicator second(nccl, device, id, Place(1, 2));
    first.reset();
    const int64_t deadline_ns = NowNs() + kPatienceNs;
    while (FakeDriver::Get().Calls("ncclCommAbort") == 0 && NowNs() < deadline_ns) std::this_thread::yield();
    EXPECT_EQ(FakeDriver::Get().Calls("ncclCommAbort"), 1u);
    while (!second.HasConnected()) std::this_thread::yield();
    second.StartAbort();
    EXPECT_TRUE(second.AbortedBy(NowNs() + kPatienceNs));
  });
}

}  // namespace
}  // namespace horocache::cuda
