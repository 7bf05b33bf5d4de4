#include "control/response_cache.h"

#include <gtest/gtest.h>

#include <random>

#include "control/bitvector.h"
#include "control/test_network.h"

namespace horocache::control {
namespace {

using Lookup = ResponseCache::Lookup;

wire::CacheBit Insert(ResponseCache& cache, const wire::Signature& signature) {
  return cache.Insert(std::make_shared<const wire::Signature>(signature), {}).bit;
}

void TouchBit(ResponseCache& cache, wire::CacheBit bit) {
  std::vector<uint64_t> words(cache.num_words());
  SetBit(words, bit);
  cache.Touch(words);
}

Lookup Find(const ResponseCache& cache, const wire::Signature& signature) {
  wire::CacheBit bit = 0;
  return cache.Find(signature, &bit);
}

TEST(ResponseCache, TakesTheLowestFreeSlot) {
  ResponseCache cache(10, false);
  EXPECT_EQ(Insert(cache, Tensor("a")), 0u);
  EXPECT_EQ(Insert(cache, Tensor("b")), 1u);
  EXPECT_EQ(Insert(cache, Tensor("c")), 2u);
  EXPECT_TRUE(cache.Erase(1));
  EXPECT_TRUE(cache.Erase(0));
  EXPECT_FALSE(cache.Erase(0));
  EXPECT_EQ(Insert(cache, Tensor("d")), 0u);
  EXPECT_EQ(Insert(cache, Tensor("e")), 1u);
  EXPECT_EQ(Insert(cache, Tensor("f")), 3u);
}

TEST(ResponseCache, EveryFieldOfASignatureMakesADifference) {
  ResponseCache cache(10, false);
  wire::Signature base = Group("g", {"a", "b"});
  Insert(cache, base);
  EXPECT_EQ(Find(cache, base), Lookup::kHit);
  const auto changed = [&](auto&& change) {
    wire::Signature other = base;
    change(other);
    return Find(cache, other);
  };
  EXPECT_EQ(changed([](auto& s) { s.op = wire::Op::kBroadcast; }), Lookup::kChanged);
  EXPECT_EQ(changed([](auto& s) { s.reduce_op = wire::ReduceOp::kMax; }), Lookup::kChanged);
  EXPECT_EQ(changed([](auto& s) { s.device_class = wire::DeviceClass::kFake; }), Lookup::kChanged);
  EXPECT_EQ(changed([](auto& s) { s.root = 0; }), Lookup::kChanged);
  EXPECT_EQ(changed([](auto& s) { s.priority = -1; }), Lookup::kChanged);
  EXPECT_EQ(changed([](auto& s) { s.prescale = 0.5; }), Lookup::kChanged);
  EXPECT_EQ(changed([](auto& s) { s.postscale = 0.5; }), Lookup::kChanged);
  EXPECT_EQ(changed([](auto& s) { s.layers = "compression=fp16"; }), Lookup::kChanged);
  EXPECT_EQ(changed([](auto& s) { s.backend = "mpi"; }), Lookup::kChanged);
  EXPECT_EQ(changed([](auto& s) { s.tensors[1].name = "c"; }), Lookup::kChanged);
  EXPECT_EQ(changed([](auto& s) { s.tensors[1].dtype = DType::kInt8; }), Lookup::kChanged);
  EXPECT_EQ(changed([](auto& s) { s.tensors[1].shape = {2, 2}; }), Lookup::kChanged);
  EXPECT_EQ(changed([](auto& s) { s.tensors.pop_back(); }), Lookup::kChanged);
  EXPECT_EQ(changed([](auto& s) { s.name = "h"; }), Lookup::kMiss);
}

TEST(ResponseCache, EvictsTheLeastRecentlyAgreedEntryAndReusesItsBit) {
  ResponseCache cache(3, true);
  Insert(cache, Tensor("a"));
  Insert(cache, Tensor("b"));
  Insert(cache, Tensor("c"));
  TouchBit(cache, 0);
  const auto inserted = cache.Insert(std::make_shared<const wire::Signature>(Tensor("d")), {});
  ASSERT_NE(inserted.evicted, nullptr);
  EXPECT_EQ(inserted.evicted->name, "b");
  EXPECT_EQ(inserted.bit, 1u);
  EXPECT_EQ(Find(cache, Tensor("b")), Lookup::kMiss);
  EXPECT_EQ(Find(cache, Tensor("a")), Lookup::kHit);
  EXPECT_EQ(cache.size(), 3);
}

TEST(ResponseCache, ALookupDoesNotCountAsUse) {
  ResponseCache cache(2, true);
  Insert(cache, Tensor("a"));
  Insert(cache, Tensor("b"));
  EXPECT_EQ(Find(cache, Tensor("a")), Lookup::kHit);  // a lookup of one rank must not change the order
  Insert(cache, Tensor("c"));
  EXPECT_EQ(Find(cache, Tensor("a")), Lookup::kMiss);
}

TEST(ResponseCache, GrowsOnlyWhenAnEvictedNameReturnsSoon) {
  ResponseCache cache(4, false);
  for (int i = 0; i < 100; ++i)
    EXPECT_FALSE(
        cache.Insert(std::make_shared<const wire::Signature>(Tensor("never again " + std::to_string(i))), {}).grew);
  EXPECT_EQ(cache.capacity(), 4);
  const auto back = cache.Insert(std::make_shared<const wire::Signature>(Tensor("never again 95")), {});
  EXPECT_TRUE(back.grew);
  EXPECT_EQ(back.evicted, nullptr);
  EXPECT_EQ(cache.capacity(), 8);
}

TEST(ResponseCache, ANameThatReturnsAfterFourTimesTheCapacityCausesNoGrowth) {
  for (const int others : {15, 17}) {
    ResponseCache cache(4, false, 0);
    Insert(cache, Tensor("old"));
    for (int i = 0; i < 4; ++i) Insert(cache, Tensor("new " + std::to_string(i)));  // the last evicts "old"
    for (int i = 0; i < others; ++i) TouchBit(cache, 0);                            // agreed responses
    const auto back = cache.Insert(std::make_shared<const wire::Signature>(Tensor("old")), {});
    EXPECT_EQ(back.grew, others == 15) << others;
  }
}

TEST(ResponseCache, AFixedCapacityDoesNotGrow) {
  ResponseCache cache(2, true);
  for (int i = 0; i < 50; ++i)
    EXPECT_FALSE(cache.Insert(std::make_shared<const wire::Signature>(Tensor("t" + std::to_string(i % 3))), {}).grew);
  EXPECT_EQ(cache.capacity(), 2);
  EXPECT_EQ(cache.size(), 2);
}

TEST(ResponseCache, CapacityZeroIsOff) {
  EXPECT_FALSE(ResponseCache(0, false).enabled());
  EXPECT_TRUE(ResponseCache(1, false).enabled());
}

TEST(ResponseCache, CanBeSwitchedOffAndOnWithItsCapacity) {
  ResponseCache cache(3, true), other(3, true);
  EXPECT_EQ(cache.hash(), other.hash());
  cache.Enable(true);
  EXPECT_EQ(cache.hash(), other.hash()) << "it is on";
  Insert(cache, Tensor("a"));
  EXPECT_TRUE(cache.Erase(0));
  cache.Enable(false);
  cache.Enable(false);
  EXPECT_FALSE(cache.enabled());
  EXPECT_EQ(cache.num_words(), 1u) << "snapshots keep their length";
  const uint64_t off = cache.hash();
  cache.Enable(true);
  EXPECT_NE(cache.hash(), off) << "ranks that differ in this notice it";
  EXPECT_EQ(cache.capacity(), 3);
  EXPECT_EQ(Insert(cache, Tensor("b")), 0u);
  EXPECT_EQ(Find(cache, Tensor("b")), Lookup::kHit);
  EXPECT_EQ(Find(cache, Tensor("a")), Lookup::kMiss);
}

TEST(ResponseCache, ACapacityThatHasGrownComesBack) {
  ResponseCache cache(1, false);
  for (const char* name : {"a", "b", "a"}) Insert(cache, Tensor(name));
  ASSERT_EQ(cache.capacity(), 2);
  for (wire::CacheBit bit = 0; bit < 2; ++bit) EXPECT_TRUE(cache.Erase(bit));
  cache.Enable(false);
  cache.Enable(true);
  EXPECT_EQ(cache.capacity(), 2);
  ResponseCache never(0, false);
  never.Enable(true);
  EXPECT_FALSE(never.enabled());
}

TEST(ResponseCache, AKnownEntryThatWasErasedIsNoHit) {
  ResponseCache cache(3, true);
  Insert(cache, Tensor("a"));
  KnownEntry known;
  wire::CacheBit bit = wire::kNoBit;
  EXPECT_EQ(cache.Find(Tensor("a"), &bit, &known), Lookup::kHit);
  ASSERT_NE(known.signature, nullptr);
  cache.Erase(0);
  EXPECT_EQ(cache.Find(Tensor("a"), &bit, &known), Lookup::kMiss);
  Insert(cache, Tensor("b"));  // takes its slot
  Insert(cache, Tensor("a"));
  EXPECT_EQ(cache.Find(Tensor("a"), &bit, &known), Lookup::kHit);
  EXPECT_EQ(bit, 1u);
}

TEST(ResponseCache, FindsEntriesThatShareATensor) {
  ResponseCache cache(10, false);
  const auto group = Insert(cache, Group("g", {"a", "b"}));
  const auto other = Insert(cache, Group("h", {"b", "c"}));
  const auto alone = Insert(cache, Tensor("a"));
  EXPECT_EQ(cache.At(group)->overlaps, (std::vector<wire::CacheBit>{other, alone}));
  EXPECT_EQ(cache.At(alone)->overlaps, std::vector<wire::CacheBit>{group});
  ASSERT_NE(cache.WithKey("b"), nullptr);
  EXPECT_EQ(cache.WithKey("b")->size(), 2u);
  cache.Erase(other);
  EXPECT_EQ(cache.At(group)->overlaps, std::vector<wire::CacheBit>{alone});
  EXPECT_EQ(cache.WithKey("c"), nullptr);
}

// Two caches that get the same calls have equal hashes. If one of them misses any one call, the hashes differ.
TEST(ResponseCache, TheHashFollowsContentsAndHistory) {
  for (int skip = -1; skip < 60; ++skip) {
    ResponseCache one(5, false), two(5, false);
    std::mt19937_64 random(3);
    for (int i = 0; i < 60; ++i) {
      const uint64_t what = random();
      const auto apply = [&](ResponseCache& cache) {
        if (what % 3 == 0 && cache.size() > 0) {
          std::vector<uint64_t> words(cache.num_words());
          for (wire::CacheBit bit = 0; bit < 64 * cache.num_words(); ++bit) {
            if (cache.At(bit) != nullptr && (what >> (bit % 32) & 1) != 0) SetBit(words, bit);
          }
          if (!std::ranges::all_of(words, [](uint64_t w) { return w == 0; })) return cache.Touch(words), true;
          return false;
        }
        Insert(cache, Tensor("t" + std::to_string(what % 11), {static_cast<int64_t>(what % 5 + 1)}));
        return true;
      };
      const bool did = apply(one);
      if (i != skip) apply(two);
      ASSERT_EQ(one.hash() == two.hash(), i != skip || !did) << i << " " << skip;
      if (i == skip) break;
    }
  }
}

TEST(ResponseCache, TheChoiceIsPartOfTheHash) {
  ResponseCache one(5, false), two(5, false);
  one.Insert(std::make_shared<const wire::Signature>(Tensor("a")), {0, 0, 0});
  two.Insert(std::make_shared<const wire::Signature>(Tensor("a")), {1, 0, 0});
  EXPECT_NE(one.hash(), two.hash());
}

}  // namespace
}  // namespace horocache::control
