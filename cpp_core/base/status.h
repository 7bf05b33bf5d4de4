// Status: success, or an error as a value. No exception crosses a thread or a layer of the core; Python turns a code
// into its exception class.
//
// An error message names the rank, the tensor and, in a conflict, both values; then it says what to do.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace horocache {

// The order is part of the C ABI (hc.h) and of the Python error tree (horocache/errors.py); append only.
enum class StatusCode : int {
  kOk = 0,
  kInvalidArgument,  // the caller's mistake, seen by this rank alone
  kNotInitialized,
  kUnsupported,    // no backend or library can do this; the message says which could
  kMismatch,       // ranks submitted incompatible requests; the message names both ranks and both values
  kDuplicateName,  // an operation of this name is in flight already
  kStall,          // some rank did not submit, or did not answer, in time
  kPeerLost,       // a rank died
  kShutDown,       // a rank left, or this one did
  kForked,         // used in a child of fork()
  kOutOfMemory,
  kVersionSkew,  // ranks run different versions or knobs
  kStartup,      // the job could not be assembled
  kAborted,      // a rank raised an error while others waited for it
  kCorrupt,      // a message or a file does not decode
  kInternal,     // a defect in horocache
  kNonFinite,    // a rank submitted NaN or infinite values while the knob check_finite was on
  kInputFailed,  // a rank could not compute the data that it was to submit; the message has its reason
};

constexpr int kNumStatusCodes = static_cast<int>(StatusCode::kInputFailed) + 1;

std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  static Status Ok() { return {}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string ToString() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status InvalidArgumentError(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }
inline Status UnsupportedError(std::string message) { return {StatusCode::kUnsupported, std::move(message)}; }
inline Status StartupError(std::string message) { return {StatusCode::kStartup, std::move(message)}; }

// Short enough for std::string to hold it without an allocation.
constexpr std::string_view kNoMemory = "no memory";
inline Status NoMemoryError() { return {StatusCode::kOutOfMemory, std::string(kNoMemory)}; }

// A value, or an error.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(Status status) : status_(std::move(status)) {
    if (status_.ok()) std::abort();
  }
  StatusOr(T value) : value_(std::move(value)) {}

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

#define HC_RETURN_IF_ERROR(expr)                                                   \
  do {                                                                             \
    if (::horocache::Status hc_status = (expr); !hc_status.ok()) return hc_status; \
  } while (false)

}  // namespace horocache
