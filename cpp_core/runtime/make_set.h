// Puts the parts of one process set together: the one place that knows which channel, agreement and backends a set of
// ranks gets.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/knobs.h"
#include "base/log.h"
#include "base/status.h"
#include "control/selector.h"
#include "data/backend.h"
#include "net/arena.h"
#include "net/link.h"
#include "net/mpi/communicator.h"
#include "program/library.h"
#include "program/work_buffer.h"
#include "runtime/set_loop.h"

namespace horocache::net {
class HostsWatch;
}  // namespace horocache::net

namespace horocache::runtime {

// What a backend over MPI works with.
struct SetComms {
  net::Communicator all;      // of the set's ranks
  net::Communicator leaders;  // of the lowest rank of each host; empty on other ranks, and on one host
};

// Where a set's ranks meet.
struct SetSite {
  uint32_t process_set = 0;
  uint32_t epoch = 0;
  std::vector<int> ranks;             // of the job, ascending
  int rank = 0;                       // of this process, within the set
  std::vector<int> host_of;           // by rank within the set; hosts are numbered in the order of their first rank
  int local_rank = 0;                 // of this process, among the set's ranks on its host
  std::shared_ptr<net::Arena> arena;  // of the set's ranks on this host alone
  // By local rank: where each sleeps. A rank has one doorbell, whatever sets it is in.
  std::vector<net::Doorbell> doorbells;
  std::vector<std::span<std::byte>> regions;  // by local rank; empty if there are none
  SetComms mpi;                               // for the mpi backend; empty if there is none
  SetComms program_mpi;                       // the same for programs, if they are to run between hosts
  net::Communicator program_links;            // of the set's ranks, for the same
  std::unique_ptr<net::Link> link;            // between the hosts' leaders
  const net::HostsWatch* watch = nullptr;     // of the job; null on one host

  bool one_host() const { return doorbells.size() == ranks.size(); }
};

// The programs that sets may run, and what they need.
struct SetPrograms {
  std::shared_ptr<const program::Library> library;  // null: none
  program::SharedMemorySource memory;
  const Logger* logger = nullptr;  // outlives the sets
};

// On every rank of the set alike; the parts belong to the caller.
StatusOr<SetParts> MakeSet(const Knobs& knobs, SetSite site, SetPrograms programs);

// How a set of so many ranks chooses backends; kInvalidArgument for a rule that is wrong.
StatusOr<control::Selector> SelectorFor(const Knobs& knobs, int ranks, data::BackendMeans means,
                                        const program::Library* programs);

}  // namespace horocache::runtime
