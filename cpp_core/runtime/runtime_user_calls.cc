// Part of Runtime: the calls to backends that the program implements.
#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "data/backends/user/calls.h"
#include "runtime/runtime.h"

namespace horocache::runtime {

void Runtime::OfferUserCalls(uint32_t process_set, const NamedUserCalls& named) {
  {
    const MutexLock lock(user_calls_mutex_);
    std::erase_if(all_user_calls_, [](const std::weak_ptr<data::UserCalls>& calls) { return calls.expired(); });
    for (const auto& [name, calls] : named) {
      user_calls_.push_back({process_set, name, calls});
      all_user_calls_.push_back(calls);
    }
  }
  user_calls_came_.notify_all();
}

StatusOr<Runtime::UserCallsOfSet> Runtime::TakeUserCalls(int64_t deadline_ns) {
  const MutexLock lock(user_calls_mutex_);
  WaitUntil(&user_calls_mutex_, &user_calls_came_, deadline_ns,
            [this]() HC_NO_THREAD_SAFETY_ANALYSIS { return user_calls_closed_ || !user_calls_.empty(); });
  if (user_calls_closed_) return Status(StatusCode::kShutDown, "horocache has been shut down on this rank.");
  if (user_calls_.empty()) return UserCallsOfSet();
  UserCallsOfSet taken = std::move(user_calls_.front());
  user_calls_.pop_front();
  return taken;
}

void Runtime::CloseUserCalls() {
  {
    const MutexLock lock(user_calls_mutex_);
    user_calls_closed_ = true;
    for (const std::weak_ptr<data::UserCalls>& each : all_user_calls_) {
      if (const std::shared_ptr<data::UserCalls> calls = each.lock(); calls != nullptr) calls->Close();
    }
  }
  user_calls_came_.notify_all();
}

}  // namespace horocache::runtime
