#include "base/dynlib.h"

#include <gtest/gtest.h>

namespace horocache {
namespace {

TEST(DynamicLibrary, FindsTheSymbolsOfALoadedLibrary) {
  const auto library = DynamicLibrary::Open("libstdc++.so.6", false);
  ASSERT_TRUE(library.ok()) << library.status().message();
  EXPECT_TRUE(library->Has("__cxa_throw"));
  EXPECT_FALSE(library->Has("no_such_symbol_anywhere"));
  EXPECT_EQ(library->path().front(), '/');
  const std::vector<std::string> loaded = LoadedLibraries({"libstdc++"});
  EXPECT_EQ(loaded, std::vector<std::string>{library->path()});
}

TEST(DynamicLibrary, AMissingLibraryIsAnErrorThatNamesIt) {
  const auto library = DynamicLibrary::Open("libhorocache-nowhere.so", false);
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(library.status().message().find("libhorocache-nowhere.so"), std::string::npos);
}

TEST(DynamicLibrary, AnEmptyLibraryHasNoSymbols) { EXPECT_FALSE(DynamicLibrary().Has("malloc")); }

}  // namespace
}  // namespace horocache
