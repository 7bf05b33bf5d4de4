// Part of Runtime: windows for one-sided exchanges.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "runtime/runtime.h"

namespace horocache::runtime {

StatusOr<WindowBlock> Runtime::AllocateWindow(std::optional<uint32_t> set, moe::Geometry geometry) {
  if (!set) {
    const WindowMembers alone{{job_.identity.rank}, {job_.identity.local_rank}, 0};
    return windows_->Allocate(std::move(geometry), alone);
  }
  const uint32_t process_set = *set;
  HC_RETURN_IF_ERROR(sets_.CheckMember(process_set, job_.identity.rank, "a window"));
  WindowMembers members;
  members.ranks = sets_.OpenRanks(process_set);
  members.rank = sets_.RankIn(process_set, job_.identity.rank);
  for (const int rank : members.ranks) {
    const auto here = std::ranges::find(job_.here, rank);
    members.local_ranks.push_back(here == job_.here.end() ? -1 : static_cast<int>(here - job_.here.begin()));
  }
  return windows_->Allocate(std::move(geometry), std::move(members));
}

void Runtime::ReportSlowExchange(const std::string& wait) {
  recorder_.Note(wait, NowNs());
  logger_.Warning(wait + " since " + SecondsText(Nanoseconds(config_.knobs.stall_check_time_seconds, kNsPerS)) +
                  "; all ranks of the layer's process set must call it, in the same order");
}

Status Runtime::CheckExchange() const {
  if (!alive_) return {StatusCode::kShutDown, "horocache has been shut down on this rank; call init() again."};
  const Status end = engine_->JobEnd();
  const bool known = end.code() == StatusCode::kPeerLost || end.code() == StatusCode::kShutDown;
  return known ? Status::Ok() : end;
}

}  // namespace horocache::runtime
