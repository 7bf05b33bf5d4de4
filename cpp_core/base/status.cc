#include "base/status.h"

#include <array>

namespace horocache {

std::string_view StatusCodeName(StatusCode code) {
  static constexpr std::array<std::string_view, kNumStatusCodes> kNames = {
      "Ok",      "InvalidArgument", "NotInitialized", "Unsupported", "Mismatch",    "DuplicateName",
      "Stall",   "PeerLost",        "ShutDown",       "Forked",      "OutOfMemory", "VersionSkew",
      "Startup", "Aborted",         "Corrupt",        "Internal",    "NonFinite",   "InputFailed"};
  return kNames.at(static_cast<size_t>(code));
}

std::string Status::ToString() const {
  if (ok()) return "Ok";
  return std::string(StatusCodeName(code_)) + ": " + message_;
}

}  // namespace horocache
