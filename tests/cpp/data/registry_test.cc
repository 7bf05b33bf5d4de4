// Which backends a rank has, and in which order.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "data/backend.h"
#include "data/ranks.h"

namespace horocache::data {
namespace {

TEST(MakeBackendsTest, ListsThemInAFixedOrder) {
  testing::Ranks one(1), two(2);
  const auto names = [](testing::Ranks* ranks, std::vector<std::string> expected) {
    for (const std::string& name : expected) EXPECT_EQ(ranks->backend(0, name).traits().name, name);
    std::vector<std::string> listed;
    for (const auto& traits : BackendTraitsFor(ranks->size())) listed.push_back(traits.name);
    EXPECT_EQ(listed, expected);
  };
  names(&one, {"loopback", "shm"});
  names(&two, {"shm"});
  SharedArea alone;
  const auto backends = MakeBackends(alone, {});
  ASSERT_TRUE(backends.ok());
  ASSERT_EQ(backends->size(), 1u);
  EXPECT_EQ((*backends)[0]->traits().name, "loopback");
}

TEST(MakeBackendsTest, RefusesUnknownKernels) {
  BackendOptions options;
  options.kernels = "sse9";
  const auto backends = MakeBackends({}, options);
  ASSERT_FALSE(backends.ok());
  EXPECT_NE(backends.status().message().find("kernels=sse9"), std::string::npos);
}

}  // namespace
}  // namespace horocache::data
