#include "runtime/windows/host_transport.h"

#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/duration.h"
#include "base/text.h"
#include "net/mpi/group_check.h"
#include "net/mpi/message_link.h"
#include "net/mpi/watchdog.h"

namespace horocache::runtime {
namespace {

// MPI tags: above those of process sets, and different for sets whose members may connect at the same time. MPI has
// tags up to 32,767 at least.
constexpr int kFirstTag = 32'000;
constexpr int kSetsWithTags = 350;

}  // namespace

Status CheckHostTransport(const Job& job, const WindowMembers& members) {
  const int far = members.far_rank();
  if (far < 0) return Status::Ok();
  if (!job.mpi.empty() && job.mpi.mpi().QueryThread() == net::MpiThreads::kMultiple) return Status::Ok();
  return UnsupportedError("one-sided exchanges with " + job.NameOf(far) + ", which is not on the host of " +
                          job.NameOf(job.identity.rank) +
                          ", need an MPI that any thread may call (MPI_THREAD_MULTIPLE); choose another exchange "
                          "(HOROCACHE_MOE_EXCHANGE)");
}

StatusOr<std::unique_ptr<moe::Transport>> ConnectToHosts(const JobConfig& config, const Job& job,
                                                         const WindowMembers& members, moe::RemoteTarget target) {
  if (members.far_rank() < 0) return std::unique_ptr<moe::Transport>();
  net::Mpi& mpi = job.mpi.mpi();
  const int64_t limit_ns = Nanoseconds(config.knobs.start_timeout, kNsPerS);
  const int tag = kFirstTag + 2 * static_cast<int>(members.process_set % kSetsWithTags);
  HC_RETURN_IF_ERROR(
      net::CompareMembers(&mpi, job.mpi.get(), members.ranks, "a window of (", tag, limit_ns, config.check));
  StatusOr<net::Communicator> comm = net::Communicator::Group(&mpi, job.mpi.get(), members.ranks, tag + 1, limit_ns);
  if (!comm.ok()) return comm.status();
  std::vector<std::string> names;
  std::vector<bool> remote;
  for (size_t i = 0; i < members.ranks.size(); ++i) {
    names.push_back(job.NameOf(members.ranks[i]));
    remote.push_back(members.local_ranks[i] < 0);
  }
  if (config.knobs.moe_between_hosts == "messages") {
    return moe::MakeLinkTransport(net::MakeMpiLink(std::move(*comm), std::move(names)), remote, std::move(target));
  }
  const net::Watchdog watchdog(limit_ns, [name = job.NameOf(job.identity.rank), limit_ns] {
    net::Watchdog::EndProcess(name + " has waited in MPI_Win_create for " + SecondsText(limit_ns) +
                              " (HOROCACHE_START_TIMEOUT); another rank of the window has ended. "
                              "HOROCACHE_MOE_BETWEEN_HOSTS=messages does without MPI's windows.");
  });
  return moe::MakeRmaTransport(std::move(*comm), std::move(names), std::move(target));
}

}  // namespace horocache::runtime
