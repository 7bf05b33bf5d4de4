// Part of Runtime: the backends of process sets, and settings that change while the job runs. See Note [Settings change
// in one round] in control/settings.h.
#include "control/settings.h"
#include "runtime/runtime.h"

namespace horocache::runtime {

std::vector<control::BackendTraits> Runtime::Backends(uint32_t process_set) const {
  if (sets_.OpenRanks(process_set).empty()) return {};
  const MutexLock lock(settings_mutex_);
  const auto found = selectors_.find(process_set);
  return found == selectors_.end() ? std::vector<control::BackendTraits>() : found->second.backends();
}

void Runtime::ForgetSelector(uint32_t process_set) {
  const MutexLock lock(settings_mutex_);
  selectors_.erase(process_set);
}

Status Runtime::Configure(const std::string& text) {
  if (!alive_) return {StatusCode::kShutDown, "horocache has been shut down on this rank; call init() again."};
  if (job_.identity.rank != 0) {
    return InvalidArgumentError("rank " + std::to_string(job_.identity.rank) +
                                " cannot change the settings of the job; call it on rank 0");
  }
  const StatusOr<control::Settings> settings = control::ParseSettings(text);
  if (!settings.ok()) return settings.status();
  if (settings->table) {
    const MutexLock lock(settings_mutex_);
    HC_RETURN_IF_ERROR(control::Selector(selectors_.at(0)).SetTable(*settings->table));
  }
  if (const Status end = engine_->JobEnd(); !end.ok())
    return {end.code(), "settings cannot change any more: " + end.message()};
  engine_->Configure(text);
  return Status::Ok();
}

Runtime::AppliedSettings Runtime::settings() const {
  const MutexLock lock(settings_mutex_);
  return settings_;
}

// Called by the driving thread, possibly before engine_ is set: other ranks may have come to their first round already.
void Runtime::OnSettings(const control::Settings& settings) {
  {
    const MutexLock lock(settings_mutex_);
    ++settings_.changes;
    if (settings.note) settings_.note = *settings.note;
  }
  settings_changes_.fetch_add(1);
}

}  // namespace horocache::runtime
