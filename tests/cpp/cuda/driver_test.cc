// The loader of the CUDA driver, with the fake and with files that are none.
#include "cuda/driver.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "cuda/fake_driver.h"

namespace horocache::cuda {
namespace {

std::shared_ptr<const Driver> LoadFake() {
  StatusOr<std::shared_ptr<const Driver>> driver = Driver::Load(HC_FAKE_CUDA);
  EXPECT_TRUE(driver.ok()) << driver.status().message();
  return *driver;
}

Status Refusal(const std::string& library) {
  const StatusOr<std::shared_ptr<const Driver>> driver = Driver::Load(library);
  EXPECT_FALSE(driver.ok());
  EXPECT_EQ(driver.status().code(), StatusCode::kUnsupported);
  return driver.status();
}

void ExpectText(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(DriverTest, LoadsTheNamedLibrary) {
  const auto driver = LoadFake();
  EXPECT_EQ(driver->version(), 13000);
  ExpectText(driver->path(), "libcuda_fake");
}

TEST(DriverTest, AMissingFileIsNamedWithItsVariable) {
  const Status refusal = Refusal("libcuda-nowhere.so.1");
  ExpectText(refusal.message(), "HOROCACHE_CUDA_LIBRARY='libcuda-nowhere.so.1'");
  ExpectText(refusal.message(), "cannot open shared object file");
}

TEST(DriverTest, ALibraryThatIsNoDriverIsNamedWithWhatItLacks) {
  const Status refusal = Refusal("libm.so.6");
  ExpectText(refusal.message(), "libm.so.6 cannot be used as a CUDA driver");
  ExpectText(refusal.message(), "cuInit, ");
}

TEST(DriverTest, AnOldDriverIsRefusedWithItsVersion) {
  HC_IN_NEW_PROCESS({
    setenv("FAKE_CUDA_VERSION", "10020", 1);
    ExpectText(Refusal(HC_FAKE_CUDA).message(), "is for CUDA 10.2; horocache needs one for CUDA 11.0 or newer");
  });
}

TEST(DriverTest, ADriverThatDoesNotStartIsRefusedWithItsError) {
  HC_IN_NEW_PROCESS({
    setenv("FAKE_GPU_FAULTS", "cuInit:1:100", 1);
    const Status refusal = Refusal(HC_FAKE_CUDA);
    ExpectText(refusal.message(), "does not start: cuInit failed with 100");
    ExpectText(refusal.message(), "no CUDA-capable device is detected");
  });
}

TEST(DriverTest, ErrorsHaveTheCallTheCodeAndTheDriversText) {
  const auto driver = LoadFake();
  EXPECT_TRUE(driver->Check(kSuccess, "cuThat").ok());
  const Status wrong = driver->Check(1, "cuThat");
  EXPECT_EQ(wrong.code(), StatusCode::kAborted);
  EXPECT_EQ(wrong.message(), "cuThat failed with 1 (CUDA_ERROR_INVALID_VALUE: invalid argument).");
  EXPECT_EQ(driver->Check(kOutOfMemory, "cuThat").code(), StatusCode::kOutOfMemory);
  ExpectText(driver->Check(700, "cuThat").message(), "The CUDA context failed before or during this call");
  ExpectText(driver->Check(12345, "cuThat").message(), "cuThat failed with 12345 (an error that this driver has no");
}

TEST(DriverTest, CallsNothingOnceTheProcessExits) {
  HC_IN_NEW_PROCESS({
    static std::shared_ptr<const Driver> driver;
    // Registered before the driver notices the exit, so that it runs after.
    std::atexit([] {
      int count = -1;
      const bool refused = driver->DeviceGetCount(&count) == kDeinitialized;
      std::_Exit(Exiting() && refused && count == -1 ? 0 : 1);
    });
    driver = LoadFake();
    std::exit(3);
  });
}

}  // namespace
}  // namespace horocache::cuda
