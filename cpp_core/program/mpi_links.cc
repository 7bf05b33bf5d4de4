#include "program/mpi_links.h"

#include <algorithm>
#include <utility>

#include "base/mutex.h"
#include "net/mpi/mpi_process.h"

namespace horocache::program {
namespace {

// What the library may still read and write, until the process ends.
void Keep(std::vector<std::byte> memory) {
  static Mutex mutex;
  static auto* const kept = new std::vector<std::vector<std::byte>>;
  MutexLock lock(mutex);
  kept->push_back(std::move(memory));
}

}  // namespace

MpiLinks::MpiLinks(net::Communicator comm) : comm_(std::move(comm)) {}

MpiLinks::~MpiLinks() {
  if (!UnderWay()) return;
  comm_.Abandon();
  net::LeaveMpiUnfinalized();
  for (std::vector<End>* ends : {&out_, &in_}) {
    for (End& end : *ends) Keep(std::move(end.memory));
  }
}

bool MpiLinks::UnderWay() const {
  const auto any = [this](const std::vector<End>& ends) {
    return std::ranges::any_of(ends, [this](const End& end) {
      return !std::ranges::all_of(end.requests, [this](const auto& request) { return comm_.mpi().IsNull(request); });
    });
  };
  return any(out_) || any(in_);
}

void MpiLinks::Prepare(std::vector<End>* ends, const std::vector<Endpoint>& wires, const std::vector<bool>& far) {
  ends->resize(std::max(ends->size(), wires.size()));
  const auto slots = static_cast<size_t>(plan_.slots);
  for (size_t strand = 0; strand < wires.size(); ++strand) {
    End& end = (*ends)[strand];
    end.wire = wires[strand];
    if (end.wire.peer < 0 || !far[static_cast<size_t>(end.wire.peer)]) continue;
    end.count = end.asked = 0;
    end.all = static_cast<uint64_t>(end.wire.messages * plan_.tiles);
    end.requests.resize(std::max(end.requests.size(), slots), comm_.mpi().null_request());
    end.came.assign(slots, -1);
    end.memory.resize(std::max(end.memory.size(), slots * SlotBytes()));
  }
}

void MpiLinks::Begin(const LinkPlan& plan, const std::vector<bool>& far) {
  plan_ = plan;
  const Wiring& wiring = plan.wirings->ranks[static_cast<size_t>(comm_.rank())];
  Prepare(&out_, wiring.out, far);
  Prepare(&in_, wiring.in, far);
  for (size_t strand = 0; strand < wiring.in.size(); ++strand) {
    if (wiring.in[strand].peer >= 0 && far[static_cast<size_t>(wiring.in[strand].peer)]) Receive(&in_[strand]);
  }
}

// As many as there are free slots.
void MpiLinks::Receive(End* end) {
  const uint64_t until = std::min(end->all, end->count + static_cast<uint64_t>(plan_.slots));
  for (; end->asked < until && status_.ok(); ++end->asked) {
    const size_t slot = SlotOf(end->asked);
    end->came[slot] = -1;
    Fail(comm_.mpi().Irecv(Memory(end, slot), static_cast<int>(plan_.slot_bytes), comm_.mpi().byte(), end->wire.peer,
                           end->wire.here, comm_.get(), &end->requests[slot]));
  }
}

bool MpiLinks::Fail(const Status& status) {
  if (!status.ok() && status_.ok()) status_ = status;
  return !status.ok();
}

bool MpiLinks::Complete(net::MpiRequest* request, net::Mpi::Received* received) {
  if (comm_.mpi().IsNull(*request)) return true;
  const StatusOr<bool> complete = comm_.mpi().Test(request, received);
  return !Fail(complete.status()) && *complete;
}

bool MpiLinks::Settled() {
  return std::ranges::all_of(out_, [this](End& end) {
    return std::ranges::all_of(end.requests, [this](net::MpiRequest& request) { return Complete(&request, nullptr); });
  });
}

std::byte* MpiLinks::Claim(int strand) {
  End& end = out_[static_cast<size_t>(strand)];
  const size_t slot = SlotOf(end.count);
  return status_.ok() && Complete(&end.requests[slot], nullptr) ? Memory(&end, slot) : nullptr;
}

void MpiLinks::Push(int strand, int64_t bytes) {
  End& end = out_[static_cast<size_t>(strand)];
  const size_t slot = SlotOf(end.count++);
  Fail(comm_.mpi().Isend(Memory(&end, slot), static_cast<int>(bytes), comm_.mpi().byte(), end.wire.peer, end.wire.there,
                         comm_.get(), &end.requests[slot]));
}

const std::byte* MpiLinks::Peek(int strand, int64_t bytes) {
  End& end = in_[static_cast<size_t>(strand)];
  const size_t slot = SlotOf(end.count);
  if (!status_.ok() || end.count >= end.asked) return nullptr;
  if (end.came[slot] < 0) {
    net::Mpi::Received received;
    if (!Complete(&end.requests[slot], &received)) return nullptr;
    end.came[slot] = received.count;
  }
  if (end.came[slot] == bytes) return Memory(&end, slot);
  Fail({StatusCode::kInternal, "a message of " + std::to_string(end.came[slot]) + " bytes came from rank " +
                                   std::to_string(end.wire.peer) + " of the program, where one of " +
                                   std::to_string(bytes) + " was due"});
  return nullptr;
}

void MpiLinks::Pop(int strand) {
  End& end = in_[static_cast<size_t>(strand)];
  ++end.count;
  Receive(&end);
}

}  // namespace horocache::program
