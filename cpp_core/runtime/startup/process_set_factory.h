// Builds the parts of one process set. This is the only place that chooses the channel, agreement and backends for a
// set of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/knobs.h"
#include "base/log.h"
#include "base/status.h"
#include "control/selector.h"
#include "cuda/device.h"
#include "cuda/nccl.h"
#include "data/backend.h"
#include "net/message_link.h"
#include "net/mpi/communicator.h"
#include "net/shm/arena.h"
#include "program/library.h"
#include "program/scratch.h"
#include "runtime/progress/set_engine.h"

namespace horocache::net {
class HostMonitor;
}  // namespace horocache::net

namespace horocache::runtime {

// The communicators that a backend over MPI uses.
struct SetComms {
  net::Communicator all;      // of all ranks of the set
  net::Communicator leaders;  // of the lowest rank of each host; empty on other ranks and on one host
};

// The ranks of a process set as this rank sees them after the bootstrap, and the means to reach them.
struct SetMembership {
  uint32_t process_set = 0;
  uint32_t epoch = 0;
  std::vector<int> ranks;             // ranks of the job, ascending, by rank within the set
  int rank = 0;                       // of this process within the set
  std::vector<int> host_of;           // by rank within the set; hosts are numbered in the order of their first rank
  int local_rank = 0;                 // of this process among the set's ranks on this host
  std::shared_ptr<net::Arena> arena;  // shared by the set's ranks on this host only
  // The doorbell of each local rank. A rank has one doorbell for all its sets.
  std::vector<net::Doorbell> doorbells;
  std::vector<std::span<std::byte>> regions;  // shared regions, by local rank; empty: none
  SetComms mpi;                               // for the mpi backend; empty: none
  SetComms nccl_mpi;                          // for the nccl backend's operations on the host; empty: none
  net::Communicator nccl_leaders;             // of the leaders, for its operations in two levels; empty: none
  SetComms program_mpi;                       // for programs that run between hosts; empty: none
  net::Communicator program_links;            // of the set's ranks, for programs that run between hosts
  std::vector<SetComms> small_mpi;            // for each small lane
  std::vector<SetComms> user_mpi;             // for each backend of the program, between hosts
  std::unique_ptr<net::Link> link;            // between the leaders of the hosts; null on other ranks and on one host
  const net::HostMonitor* host_monitor = nullptr;  // of the whole job; null on one host

  bool one_host() const { return doorbells.size() == ranks.size(); }
  control::SetSize size() const;
};

// The compiled programs that sets may run, and their resources.
struct SetPrograms {
  std::shared_ptr<const program::Library> library;  // null: none
  program::SharedMemorySource memory;
  const Logger* logger = nullptr;  // outlives the sets
};

// The backends that the program implements, equal on all ranks; their traits say what they run.
using UserBackends = std::vector<control::BackendTraits>;

struct SetDevices {
  std::shared_ptr<cuda::Devices> devices;  // the CUDA devices of this rank
  std::shared_ptr<const cuda::Nccl> nccl;  // null: none
};

// The number of small lanes of a set; see Note [Small lanes] in progress/small_lanes.h.
int64_t SmallLanesOf(const Knobs& knobs, size_t ranks);

// Makes the parts of a set. All ranks of the set pass equal settings and the same rules of a tuning table. The caller
// owns the parts.
StatusOr<SetParts> MakeSet(const Knobs& knobs, SetMembership membership, SetPrograms programs, SetDevices devices,
                           const UserBackends& users, const std::string& tuning);

// Makes the selector, the rules by which a set of this size chooses backends. Returns kInvalidArgument for a bad rule.
// `users` null: they are not known yet, and rules may name them.
StatusOr<control::Selector> SelectorFor(const Knobs& knobs, control::SetSize size, data::Transports transports,
                                        const program::Library* programs, const UserBackends* users,
                                        const std::string& tuning = {});

}  // namespace horocache::runtime
