// Operations that a thread submits although the program could not compute their data: the other ranks must not wait for
// them.
#pragma once

#include <string>
#include <utility>

namespace horocache::runtime {

// While one exists, the collectives that its thread submits fail with kInputFailed on all ranks, which get the reason;
// messages are not sent. Without a reason, an outer one does not count.
class FailedInput {
 public:
  explicit FailedInput(std::string reason) : reason_(std::move(reason)), outer_(std::exchange(current_, this)) {
    if (reason_.size() > kMostBytes) reason_.resize(kMostBytes);
  }
  ~FailedInput() { current_ = outer_; }
  FailedInput(const FailedInput&) = delete;
  FailedInput& operator=(const FailedInput&) = delete;

  // Null if this thread's data is as it should be.
  static const std::string* Reason() {
    return current_ == nullptr || current_->reason_.empty() ? nullptr : &current_->reason_;
  }

 private:
  static constexpr size_t kMostBytes = 2000;
  static inline thread_local const FailedInput* current_ = nullptr;

  std::string reason_;
  const FailedInput* const outer_;
};

}  // namespace horocache::runtime
