#include "base/knobs.h"

#include <gtest/gtest.h>

namespace horocache {
namespace {

using Texts = std::map<std::string, std::string>;

TEST(Knobs, DefaultsParse) {
  const auto knobs = Knobs::Parse({}, {});
  ASSERT_TRUE(knobs.ok()) << knobs.status().ToString();
  EXPECT_EQ(knobs->cache_capacity, 1024);
  EXPECT_EQ(knobs->fusion_threshold, 128 << 20);
  EXPECT_DOUBLE_EQ(knobs->cycle_time, 1.0);
  EXPECT_EQ(knobs->cycle_mode, "event");
  EXPECT_TRUE(knobs->IsDefault("cache_capacity"));
}

TEST(Knobs, ArgumentsOverrideTheEnvironmentAndItsNamesOverrideHorovods) {
  const Texts environment = {
      {"HOROVOD_CACHE_CAPACITY", "1"}, {"HOROCACHE_CACHE_CAPACITY", "2"}, {"HOROVOD_CYCLE_TIME", "3.5"}};
  const auto knobs = Knobs::Parse(environment, {});
  ASSERT_TRUE(knobs.ok());
  EXPECT_EQ(knobs->cache_capacity, 2);
  EXPECT_DOUBLE_EQ(knobs->cycle_time, 3.5);
  EXPECT_FALSE(knobs->IsDefault("cycle_time"));
  EXPECT_EQ(Knobs::Parse(environment, {{"cache_capacity", "7"}})->cache_capacity, 7);
}

TEST(Knobs, AnUnknownNameIsAnErrorThatSuggestsTheNearest) {
  const auto from_environment = Knobs::Parse({{"HOROCACHE_CACHE_CAPASITY", "1"}}, {});
  ASSERT_FALSE(from_environment.ok());
  EXPECT_NE(from_environment.status().message().find("HOROCACHE_CACHE_CAPACITY"), std::string::npos);
  const auto from_argument = Knobs::Parse({}, {{"cycle_tme", "1"}});
  ASSERT_FALSE(from_argument.ok());
  EXPECT_NE(from_argument.status().message().find("'cycle_time'"), std::string::npos);
}

TEST(Knobs, SomeVariablesOfHorovodHaveNoEffect) {
  EXPECT_TRUE(Knobs::Parse({{"HOROVOD_GLOO_IFACE", "eth0"}}, {}).ok());
}

TEST(Knobs, ABadValueNamesTheKnobTheValueAndTheRange) {
  const struct {
    const char* name;
    const char* value;
    const char* expected;
  } kCases[] = {{"cache_capacity", "-1", "0 to 1048576"}, {"cache_capacity", "12x", "whole number"},
                {"cache_capacity", "", "whole number"},   {"cycle_time", "nan", "a number from"},
                {"cycle_time", "1e9", "0 to 1000"},       {"cycle_mode", "tik", "did you mean 'tick'"},
                {"log_hide_time", "maybe", "true"}};
  for (const auto& test : kCases) {
    const auto knobs = Knobs::Parse({}, {{test.name, test.value}});
    ASSERT_FALSE(knobs.ok()) << test.name << "=" << test.value;
    EXPECT_EQ(knobs.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(knobs.status().message().find(test.name), std::string::npos);
    EXPECT_NE(knobs.status().message().find(test.expected), std::string::npos) << knobs.status().message();
  }
}

TEST(Knobs, ATextWithANulByteIsRefused) {
  const std::string text("/tmp\0x", 6);
  const auto knobs = Knobs::Parse({}, {{"flight_record", text}});
  EXPECT_EQ(knobs.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(knobs.status().message().find("/tmp\\x00x"), std::string::npos) << knobs.status().message();
}

TEST(Knobs, OnlyKnobsThatMustAgreeAreInTheHandshake) {
  const auto knobs = Knobs::Parse({}, {{"rank", "3"}, {"cycle_time", "2"}});
  ASSERT_TRUE(knobs.ok());
  EXPECT_NE(knobs->AgreeText().find("cycle_time=2\n"), std::string::npos);
  EXPECT_EQ(knobs->AgreeText().find("\nrank="), std::string::npos);
}

}  // namespace
}  // namespace horocache
