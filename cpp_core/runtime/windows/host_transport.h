// The transport of a window to the ranks of its process set on other hosts.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "moe/remote/transport.h"
#include "runtime/startup/job.h"
#include "runtime/windows/windows.h"

namespace horocache::runtime {

// Why windows cannot connect the hosts of a job; ok: they can.
Status CheckHostTransport(const Job& job, const WindowMembers& members);

// The transport that the knob moe_between_hosts names; null if all members are on this host. All members call it at the
// same time. kStartup names a member that does not come in time.
StatusOr<std::unique_ptr<moe::Transport>> ConnectToHosts(const JobConfig& config, const Job& job,
                                                         const WindowMembers& members, moe::RemoteTarget target);

}  // namespace horocache::runtime
