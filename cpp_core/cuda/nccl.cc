#include "cuda/nccl.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/environment.h"
#include "base/text.h"

namespace horocache::cuda {
namespace {

constexpr const char* kFile = "libnccl.so.2";

// The first versions with a longer configuration, and the number of its bytes.
struct ConfigSize {
  int version;
  size_t bytes;
};
constexpr ConfigSize kConfigSizes[] = {{22703, 72}, {21801, 48}, {Nccl::kOldestVersion, 24}};

StatusOr<DynamicLibrary> OpenNamed(const std::string& library, const std::vector<std::string>& loaded) {
  const std::string knob = "HOROCACHE_NCCL_LIBRARY='" + Printable(library) + "'";
  std::error_code ignored;
  const auto same_file = [&] {
    // A name is looked for by the dynamic loader, which finds what is loaded.
    if (library.find('/') == std::string::npos)
      return std::filesystem::path(loaded.front()).filename().string().starts_with(library);
    return std::filesystem::equivalent(library, loaded.front(), ignored);
  };
  const bool same = !loaded.empty() && same_file();
  // Refused before it is loaded: a library cannot be unloaded again.
  if (!loaded.empty() && !same) {
    return UnsupportedError(knob + " is not the NCCL that this process has loaded already (a framework did): '" +
                            loaded.front() + "'. Two copies in one process do not work: unset the variable.");
  }
  StatusOr<DynamicLibrary> named = DynamicLibrary::Open(same ? loaded.front() : library, false);
  if (named.ok()) return named;
  return UnsupportedError(knob + ": " + named.status().message());
}

StatusOr<DynamicLibrary> Open(const NcclSearch& search) {
  const std::vector<std::string> loaded = LoadedLibraries({"libnccl.so"});
  if (!search.library.empty()) return OpenNamed(search.library, loaded);
  if (!loaded.empty()) return DynamicLibrary::Open(loaded.front(), false);
  if (search.loaded_only) return UnsupportedError("no framework of this process has loaded it");
  for (const std::string& folder : search.folders) {
    const std::string file = folder + "/" + kFile;
    std::error_code ignored;
    if (std::filesystem::exists(file, ignored)) return DynamicLibrary::Open(file, false);
  }
  return DynamicLibrary::Open(kFile, false);
}

}  // namespace

StatusOr<std::shared_ptr<const Nccl>> Nccl::Load(const NcclSearch& search) {
  StatusOr<DynamicLibrary> found = Open(search);
  if (!found.ok()) {
    const std::string advice = search.library.empty() ? ". Install it (pip install nvidia-nccl-cu13), put its folder "
                                                        "into LD_LIBRARY_PATH, or name the file in "
                                                        "HOROCACHE_NCCL_LIBRARY."
                                                      : "";
    return UnsupportedError("NCCL cannot be loaded: " + found.status().message() + advice);
  }
  std::shared_ptr<Nccl> nccl(new Nccl);
  nccl->library_ = std::move(*found);
  // By default the first collective of a communicator connects the ranks, inside the call that launches it, which would
  // wait there for a rank that has died. The initialization, which has a limit, connects them instead.
  SetUnlessSet("NCCL_RUNTIME_CONNECT", "0");
  HC_RETURN_IF_ERROR(nccl->CheckVersion());
  HC_RETURN_IF_ERROR(nccl->Find());
  return std::shared_ptr<const Nccl>(std::move(nccl));
}

// Before the search for functions that an old library lacks: its version says more than their names.
Status Nccl::CheckVersion() {
  functions_.GetVersion = reinterpret_cast<decltype(functions_.GetVersion)>(library_.Find("ncclGetVersion"));
  if (functions_.GetVersion == nullptr) return UnsupportedError(path() + " is not NCCL: it lacks ncclGetVersion.");
  HC_RETURN_IF_ERROR(Check(GetVersion(&version_), "ncclGetVersion"));
  if (version_ >= kOldestVersion) return Status::Ok();
  return UnsupportedError("the NCCL at " + path() + " has version " + VersionText(version_) + "; horocache needs " +
                          VersionText(kOldestVersion) + " or newer. Update it (pip install nvidia-nccl-cu13).");
}

Status Nccl::Find() {
  std::vector<std::string> missing;
#define HC_NCCL_FIND(name)                                                                    \
  functions_.name = reinterpret_cast<decltype(functions_.name)>(library_.Find("nccl" #name)); \
  if (functions_.name == nullptr) missing.emplace_back("nccl" #name);
#define HC_NCCL_FIND_FUNCTION(name, parameters, arguments) HC_NCCL_FIND(name)
  HC_NCCL_FUNCTIONS(HC_NCCL_FIND_FUNCTION)
  HC_NCCL_FIND(GetErrorString)
  HC_NCCL_FIND(GetLastError)
  if (version_ >= kOldestWithWindows) {
    HC_NCCL_WINDOW_FUNCTIONS(HC_NCCL_FIND_FUNCTION)
  }
#undef HC_NCCL_FIND_FUNCTION
#undef HC_NCCL_FIND
  if (missing.empty()) return Status::Ok();
  return UnsupportedError(path() + " cannot be used as NCCL: it lacks " + Join(missing, ", ") +
                          ". Update it (pip install nvidia-nccl-cu13).");
}

std::string Nccl::VersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

NcclConfig Nccl::Config() const {
  const auto known = [this](const ConfigSize& size) { return version_ >= size.version; };
  const ConfigSize& size = *std::ranges::find_if(kConfigSizes, known);
  NcclConfig config;
  config.size = size.bytes;
  config.version = static_cast<unsigned>(size.version);
  return config;
}

Status Nccl::Check(NcclResult result, const char* call, NcclCommHandle comm) const {
  if (result == kNcclSuccess) return Status::Ok();
  if (result == kNcclExiting) {
    return {StatusCode::kAborted, std::string(call) + " was not called: the process is about to exit."};
  }
  const bool can_ask = !Exiting() && functions_.GetErrorString != nullptr;
  const char* const text = can_ask ? functions_.GetErrorString(result) : nullptr;
  const char* const last = can_ask ? functions_.GetLastError(comm) : nullptr;
  std::string why = std::string(call) + " failed with " + std::to_string(result);
  if (text != nullptr) why += " (" + PrintableLines(text) + ")";
  if (last != nullptr && *last != '\0') why += ": " + PrintableLines(last);
  return {StatusCode::kAborted, Sentence(why) + " NCCL_DEBUG=INFO shows more."};
}

std::optional<NcclDataType> NcclTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
      return 0;
    case DType::kUint8:
      return kNcclUint8;
    case DType::kInt32:
      return 2;
    case DType::kUint32:
      return 3;
    case DType::kInt64:
      return 4;
    case DType::kUint64:
      return 5;
    case DType::kFloat16:
      return 6;
    case DType::kFloat32:
      return 7;
    case DType::kFloat64:
      return 8;
    case DType::kBfloat16:
      return 9;
    default:
      return std::nullopt;
  }
}

}  // namespace horocache::cuda
