#include "base/text.h"

#include <gtest/gtest.h>

namespace horocache {
namespace {

TEST(Nearest, FindsTheWordOfATypoAndNoneForAnotherWord) {
  const std::vector<std::string> names = {"cycle_time", "cache_capacity", "spin_us"};
  EXPECT_EQ(Nearest("cycletime", names), "cycle_time");
  EXPECT_EQ(Nearest("cache_capasity", names), "cache_capacity");
  EXPECT_EQ(Nearest("zzzzzz", names), "");
}

TEST(Join, PutsSeparatorsBetween) {
  EXPECT_EQ(Join({}, ", "), "");
  EXPECT_EQ(Join({"a"}, ", "), "a");
  EXPECT_EQ(Join({"a", "b", "c"}, ", "), "a, b, c");
}

TEST(JsonText, IsAJsonStringForAnyBytes) {
  EXPECT_EQ(JsonText("layer.0/weight"), "\"layer.0/weight\"");
  EXPECT_EQ(JsonText("a\"b\\c\nd"), "\"a\\\"b\\\\c\\u000ad\"");
  EXPECT_EQ(JsonText(std::string_view("\0\x7f", 2)), "\"\\u0000\\u007f\"");
  EXPECT_EQ(JsonText("gr\xc3\xb6\xff"), "\"gr\xc3\xb6\\\\xff\"");
  EXPECT_EQ(JsonText(""), "\"\"");
}

TEST(Printable, EscapesLineFeedsAndControlCharacters) {
  EXPECT_EQ(Printable("layer.0/weight"), "layer.0/weight");
  EXPECT_EQ(Printable("a\nb'c\\d"), "a\\nb\\'c\\\\d");
  EXPECT_EQ(Printable(std::string_view("\0\x1b", 2)), "\\x00\\x1b");
  EXPECT_EQ(Printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(Printable("gr\xc3\xb6\xc3\x9f"
                      "e"),
            "gr\xc3\xb6\xc3\x9f"
            "e");
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate is not UTF-8
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(Printable, EscapesEveryControlAndInvisibleCharacter) {
  EXPECT_EQ(Printable("\xc2\x9b"
                      "31m"),
            "\\u009b31m");
  EXPECT_EQ(Printable("\xe2\x80\xae"
                      "evil"),
            "\\u202eevil");
  EXPECT_EQ(Printable("a\xe2\x80\x8b"
                      "b\xef\xbb\xbf"),
            "a\\u200bb\\ufeff");
  EXPECT_EQ(Printable("\xe2\x80\xa8\xe2\x80\xa9"), "\\u2028\\u2029");
  EXPECT_EQ(Printable("\xf3\xa0\x81\x81"), "\\U000e0041");
  EXPECT_EQ(Printable("\xf0\x9f\x99\x82\xc2\xa0"), "\xf0\x9f\x99\x82\xc2\xa0");
  EXPECT_EQ(JsonText("\xc2\x9b\xf3\xa0\x81\x81"), "\"\\u009b\\udb40\\udc41\"");
}

TEST(Sentence, EndsWithOneStop) {
  EXPECT_EQ(Sentence("the reason"), "the reason.");
  EXPECT_EQ(Sentence("the reason."), "the reason.");
  EXPECT_EQ(Sentence("why?"), "why?");
  EXPECT_EQ(Sentence(""), "");
}

TEST(PrintableLines, KeepsLinesQuotesAndEscapedText) {
  EXPECT_EQ(PrintableLines("KeyError: 'x'\n\tat \\x1b"), "KeyError: 'x'\n\tat \\x1b");
  EXPECT_EQ(PrintableLines("\x1b[2J\r\xff\xc2\x9b"), "\\x1b[2J\\x0d\\xff\\u009b");
}

}  // namespace
}  // namespace horocache
