// Part of Runtime: windows for one-sided exchanges.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "runtime/runtime.h"
#include "runtime/windows/host_transport.h"

namespace horocache::runtime {

StatusOr<WindowBlock> Runtime::AllocateWindow(std::optional<uint32_t> set, moe::Geometry geometry) {
  if (!set) {
    const WindowMembers alone{.ranks = {job_.identity.rank}, .local_ranks = {job_.identity.local_rank}};
    return windows_->Allocate(std::move(geometry), alone);
  }
  const uint32_t process_set = *set;
  HC_RETURN_IF_ERROR(sets_.CheckMember(process_set, job_.identity.rank, "a window"));
  WindowMembers members;
  members.process_set = process_set;
  members.ranks = sets_.OpenRanks(process_set);
  members.rank = sets_.RankIn(process_set, job_.identity.rank);
  for (const int rank : members.ranks) {
    const auto here = std::ranges::find(job_.here, rank);
    members.local_ranks.push_back(here == job_.here.end() ? -1 : static_cast<int>(here - job_.here.begin()));
  }
  HC_RETURN_IF_ERROR(CheckHostTransport(job_, members));
  return windows_->Allocate(std::move(geometry), std::move(members));
}

StatusOr<std::shared_ptr<moe::Window>> Runtime::ConnectWindow(WindowBlock block, const std::vector<int64_t>& offsets,
                                                              const std::function<bool()>& go_on) {
  JobConfig config = ConfigOfJob();
  config.check = [&]() -> Status {
    if (go_on && !go_on()) return {StatusCode::kAborted, "the opening of a window was interrupted"};
    return engine_->WhyLost();
  };
  auto transport = ConnectToHosts(config, job_, block.members, block.Target());
  if (!transport.ok()) return transport.status();
  return windows_->Connect(std::move(block), offsets, std::move(*transport));
}

void Runtime::OnLostElsewhere(int rank, const std::string& what) {
  recorder_.Note(what, NowNs());
  windows_->Lose(rank);
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
