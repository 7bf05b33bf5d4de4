#include "data/backends/user/calls.h"

#include <utility>

namespace horocache::data {

void UserCalls::Push(std::shared_ptr<const UserCall> call) {
  {
    const MutexLock lock(mutex_);
    if (closed_) return;
    call_ = std::move(call);
    taken_ = ended_ = false;
  }
  changed_.notify_all();
}

bool UserCalls::TakeEnd(Status* status) {
  const MutexLock lock(mutex_);
  if (!ended_) return false;
  *status = std::exchange(status_, Status::Ok());
  call_.reset();
  ended_ = false;
  return true;
}

void UserCalls::Close() {
  {
    const MutexLock lock(mutex_);
    closed_ = true;
    if (!taken_) call_.reset();
  }
  changed_.notify_all();
}

bool UserCalls::AwaitIdle(int64_t deadline_ns) {
  const MutexLock lock(mutex_);
  return WaitUntil(&mutex_, &changed_, deadline_ns,
                   [this]() HC_NO_THREAD_SAFETY_ANALYSIS { return call_ == nullptr || !taken_ || ended_; });
}

std::shared_ptr<const UserCall> UserCalls::Take(int64_t deadline_ns) {
  const MutexLock lock(mutex_);
  WaitUntil(&mutex_, &changed_, deadline_ns,
            [this]() HC_NO_THREAD_SAFETY_ANALYSIS { return closed_ || (call_ != nullptr && !taken_); });
  if (closed_ || call_ == nullptr || taken_) return nullptr;
  taken_ = true;
  return call_;
}

void UserCalls::Finish(const Status& status) {
  {
    const MutexLock lock(mutex_);
    if (call_ == nullptr || !taken_ || ended_) return;
    ended_ = true;
    status_ = status;
  }
  changed_.notify_all();
  wake_();
}

bool UserCalls::closed() const {
  const MutexLock lock(mutex_);
  return closed_;
}

}  // namespace horocache::data
