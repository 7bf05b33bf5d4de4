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

// All members call it at the same time. `kind`: a value of the knob moe_between_hosts. kStartup names a member that
// does not come in time.
StatusOr<std::unique_ptr<moe::Transport>> ConnectToHosts(const JobConfig& config, const Job& job,
                                                         const WindowMembers& members, moe::RemoteTarget target);

}  // namespace horocache::runtime
