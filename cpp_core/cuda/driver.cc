#include "cuda/driver.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "base/text.h"

namespace horocache::cuda {
namespace {

constexpr const char* kSystemLibrary = "libcuda.so.1";

std::atomic<bool> exiting{false};

// exit() calls what was registered last first. The driver registers its own end when it is loaded or initialised, so
// this comes after that.
void NoticeExit() {
  static std::once_flag registered;
  std::call_once(registered, [] { std::atexit([] { exiting.store(true); }); });
}

std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version / 10 % 100);
}

// After these codes every call on the context fails, until the process ends: errors of the hardware, and of kernels.
constexpr std::array<Code, 12> kSticky = {214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721};
bool IsSticky(Code code) { return std::ranges::find(kSticky, code) != kSticky.end(); }

StatusOr<DynamicLibrary> Open(const std::string& library) {
  const std::string needed = "CUDA tensors need the CUDA driver: ";
  const std::vector<std::string> loaded = LoadedLibraries({"libcuda.so"});
  if (library.empty()) {
    StatusOr<DynamicLibrary> found = DynamicLibrary::Open(loaded.empty() ? kSystemLibrary : loaded.front(), false);
    if (found.ok()) return found;
    return UnsupportedError(needed + found.status().message() +
                            ". Install NVIDIA's driver, put its folder into LD_LIBRARY_PATH, or name the file in "
                            "HOROCACHE_CUDA_LIBRARY.");
  }
  const std::string knob = needed + "HOROCACHE_CUDA_LIBRARY='" + Printable(library) + "'";
  StatusOr<DynamicLibrary> named = DynamicLibrary::Open(library, false);
  if (!named.ok()) return UnsupportedError(knob + ": " + named.status().message());
  if (loaded.empty() || loaded.front() == named->path()) return named;
  return UnsupportedError(knob + " names '" + named->path() + "', but this process has loaded '" + loaded.front() +
                          "' already (a framework did). Only one driver can work: unset the variable.");
}

}  // namespace

bool Exiting() { return exiting.load(std::memory_order_relaxed); }

Status Driver::Find(const std::string& library) { return Open(library).status(); }

StatusOr<std::shared_ptr<const Driver>> Driver::Load(const std::string& library) {
  StatusOr<DynamicLibrary> found = Open(library);
  if (!found.ok()) return found.status();
  std::shared_ptr<Driver> driver(new Driver);
  driver->library_ = std::move(*found);
  HC_RETURN_IF_ERROR(driver->FindFunctions());
  HC_RETURN_IF_ERROR(driver->Start());
  return std::shared_ptr<const Driver>(std::move(driver));
}

Status Driver::FindFunctions() {
  std::vector<std::string> missing;
#define HC_CUDA_FIND(name, symbol, parameters, arguments)                                \
  functions_.name = reinterpret_cast<decltype(functions_.name)>(library_.Find(#symbol)); \
  if (functions_.name == nullptr) missing.emplace_back(#symbol);
  HC_CUDA_FUNCTIONS(HC_CUDA_FIND)
#undef HC_CUDA_FIND
  if (missing.empty()) return Status::Ok();
  return UnsupportedError(path() + " cannot be used as a CUDA driver: it lacks " + Join(missing, ", ") +
                          ". Update NVIDIA's driver.");
}

Status Driver::Start() {
  Code code = DriverGetVersion(&version_);
  if (code == kSuccess && version_ < kOldestVersion) {
    return UnsupportedError("the CUDA driver at " + path() + " is for CUDA " + VersionText(version_) +
                            "; horocache needs one for CUDA " + VersionText(kOldestVersion) +
                            " or newer. Update NVIDIA's driver.");
  }
  if (code == kSuccess) code = Init(0);
  if (code != kSuccess) {
    return UnsupportedError("the CUDA driver at " + path() + " does not start: " + Check(code, "cuInit").message());
  }
  NoticeExit();
  return Status::Ok();
}

Status Driver::Check(Code code, const char* call) const {
  if (code == kSuccess) return Status::Ok();
  const char* name = nullptr;
  const char* text = nullptr;
  // The driver does not know the codes of newer ones.
  if (GetErrorName(code, &name) != kSuccess || name == nullptr) name = "an error that this driver has no name for";
  if (GetErrorString(code, &text) != kSuccess || text == nullptr) text = "no text";
  std::string why = std::string(call) + " failed with " + std::to_string(code) + " (" + name + ": " + text + ")";
  if (code == kOutOfMemory) return {StatusCode::kOutOfMemory, why};
  if (code == kDeinitialized) why += "; the process is about to exit";
  if (IsSticky(code)) {
    why +=
        ". The CUDA context failed before or during this call and cannot be used any more. The cause may be a kernel "
        "of the program as well as a copy: CUDA_LAUNCH_BLOCKING=1 shows which call fails. Start the process again";
  }
  return {StatusCode::kAborted, why + "."};
}

}  // namespace horocache::cuda
