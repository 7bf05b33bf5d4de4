#include "net/mpi/find_library.h"

#include <gtest/gtest.h>

#include "net/bootstrap/host.h"
#include "net/mpi/abi_constants.h"

namespace horocache::net {
namespace {

TEST(FindMpi, ALibraryThatIsNoMpiIsAnErrorThatNamesTheKnobAndTheFile) {
  const auto found = FindMpi({.library = "libstdc++.so.6"});
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(found.status().message().find("HOROCACHE_MPI_LIBRARY='libstdc++.so.6'"), std::string::npos);
  EXPECT_NE(found.status().message().find("MPI_Init_thread"), std::string::npos) << found.status().message();
}

TEST(FindMpi, AMissingFileIsAnErrorThatNamesIt) {
  const auto found = FindMpi({.library = "./libmpi-nowhere.so"});
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.status().message().find("./libmpi-nowhere.so"), std::string::npos) << found.status().message();
}

TEST(MpiConstants, TheTablesOfTheStandardAndOfMpichAreComplete) {
  for (const MpiAbi abi : {MpiAbi::kStandard, MpiAbi::kMpich}) {
    const auto constants = ConstantsOf(abi, DynamicLibrary());
    ASSERT_TRUE(constants.ok());
    for (const uintptr_t type : constants->types) EXPECT_NE(type, 0u);
    for (const uintptr_t op : constants->ops) EXPECT_NE(op, 0u);
  }
  EXPECT_FALSE(ConstantsOf(MpiAbi::kOpenMpi, DynamicLibrary()).ok());
}

TEST(Host, DependsOnTheHostIdAndTheDirectory) {
  EXPECT_EQ(FindHost("", "/tmp").key, FindHost("", "/tmp").key);
  EXPECT_NE(FindHost("", "/tmp").key, FindHost("", "/proc").key);
  EXPECT_NE(FindHost("a", "/tmp").key, FindHost("b", "/tmp").key);
  EXPECT_EQ(FindHost("a", "/tmp").name, "a");
  EXPECT_FALSE(FindHost("", "/tmp").name.empty());
}

}  // namespace
}  // namespace horocache::net
