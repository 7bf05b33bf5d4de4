#include "program/mpi_links.h"

#include <algorithm>
#include <utility>

#include "net/mpi/mpi_process.h"
#include "net/mpi/orphaned_requests.h"

namespace horocache::program {
namespace {

// Tags of a connection, from the number of its end at the receiver.
int DataTag(int32_t number) { return 2 * number; }
int CreditTag(int32_t number) { return 2 * number + 1; }

}  // namespace

MpiLinks::MpiLinks(net::Communicator comm) : comm_(std::move(comm)) {}

MpiLinks::~MpiLinks() {
  if (!UnderWay()) return;
  Abandon();
  for (std::vector<End>* ends : {&out_, &in_}) {
    for (End& end : *ends) net::KeepUntilExit(std::move(end.memory));
  }
}

void MpiLinks::Abandon() {
  comm_.Abandon();
  net::LeaveMpiUnfinalized();
}

bool MpiLinks::UnderWay() const {
  const auto open = [this](const net::MpiRequest& request) { return !comm_.mpi().IsNull(request); };
  const auto any = [&](const std::vector<End>& ends) {
    return std::ranges::any_of(ends, [&](const End& end) {
      return std::ranges::any_of(end.requests, open) || std::ranges::any_of(end.credit, open);
    });
  };
  return any(out_) || any(in_);
}

void MpiLinks::Prepare(std::vector<End>* ends, const std::vector<Endpoint>& wires, const std::vector<bool>& far) {
  ends->resize(std::max(ends->size(), wires.size()));
  for (size_t thread_block = 0; thread_block < wires.size(); ++thread_block) {
    End& end = (*ends)[thread_block];
    end.wire = wires[thread_block];
    if (end.wire.peer < 0 || !far[static_cast<size_t>(end.wire.peer)]) continue;
    end.count = end.asked = end.credits = 0;
    end.all = static_cast<uint64_t>(end.wire.messages * plan_.tiles);
    end.all_credits = end.all > window() ? (end.all - window() + share() - 1) / share() : 0;
    end.requests.resize(std::max(end.requests.size(), slots()), comm_.mpi().null_request());
    end.credit.clear();
    end.came.assign(slots(), -1);
    end.memory.resize(std::max(end.memory.size(), slots() * slot_lines_));
  }
}

void MpiLinks::Begin(const LinkPlan& plan, const std::vector<bool>& far) {
  plan_ = plan;
  slot_lines_ = static_cast<size_t>((plan.slot_bytes + kCacheLine - 1) / kCacheLine);
  const Wiring& wiring = plan.wirings->ranks[static_cast<size_t>(comm_.rank())];
  Prepare(&out_, wiring.out, far);
  Prepare(&in_, wiring.in, far);
  const auto is_far = [&far](const Endpoint& end) { return end.peer >= 0 && far[static_cast<size_t>(end.peer)]; };
  for (size_t thread_block = 0; thread_block < wiring.in.size(); ++thread_block) {
    if (is_far(wiring.in[thread_block])) Receive(&in_[thread_block]);
    if (is_far(wiring.out[thread_block])) AwaitCredit(&out_[thread_block]);
  }
}

// Posts a receive for each free slot.
void MpiLinks::Receive(End* end) {
  const uint64_t until = std::min(end->all, end->count + slots());
  for (; end->asked < until; ++end->asked) {
    const size_t slot = SlotOf(end->asked);
    end->came[slot] = -1;
    const Status started =
        comm_.mpi().Irecv(Memory(end, slot), static_cast<int>(plan_.slot_bytes), comm_.mpi().byte(), end->wire.peer,
                          DataTag(end->wire.here), comm_.get(), &end->requests[slot]);
    if (Failed(*end, started)) return;
  }
}

// Posts the receive of the next credit, unless all have come.
void MpiLinks::AwaitCredit(End* end) {
  end->credit.clear();
  if (end->credits >= end->all_credits) return;
  end->credit.push_back(comm_.mpi().null_request());
  Failed(*end, comm_.mpi().Irecv(nullptr, 0, comm_.mpi().byte(), end->wire.peer, CreditTag(end->wire.there),
                                 comm_.get(), &end->credit.back()));
}

bool MpiLinks::MayPush(End* end) {
  const auto allowed = [&] { return window() + end->credits * share(); };
  while (end->count >= allowed() && !end->credit.empty()) {
    if (!Complete(*end, &end->credit.back(), nullptr)) return false;
    ++end->credits;
    AwaitCredit(end);
  }
  return end->count < allowed();
}

bool MpiLinks::Failed(const End& end, const Status& status) {
  if (!status.ok() && failure_.status.ok()) failure_ = {status, end.wire.peer};
  return !status.ok();
}

bool MpiLinks::Complete(const End& end, net::MpiRequest* request, net::Mpi::Received* received) {
  if (!failure_.status.ok()) return false;
  if (comm_.mpi().IsNull(*request)) return true;
  const StatusOr<bool> complete = comm_.mpi().Test(request, received);
  return !Failed(end, complete.status()) && *complete;
}

bool MpiLinks::Settled() {
  const auto settled = [this](End& end, std::vector<net::MpiRequest>& requests) {
    return std::ranges::all_of(requests, [&](net::MpiRequest& request) { return Complete(end, &request, nullptr); });
  };
  return std::ranges::all_of(out_, [&](End& end) { return settled(end, end.requests); }) &&
         std::ranges::all_of(in_, [&](End& end) { return settled(end, end.credit); });
}

void MpiLinks::AddUnsettled(std::vector<int>* ranks) const {
  const auto add = [this, ranks](const End& end, const std::vector<net::MpiRequest>& requests) {
    const auto open = [this](const net::MpiRequest& request) { return !comm_.mpi().IsNull(request); };
    if (std::ranges::any_of(requests, open)) ranks->push_back(end.wire.peer);
  };
  for (const End& end : out_) add(end, end.requests);
  for (const End& end : in_) add(end, end.credit);
}

std::byte* MpiLinks::Claim(int thread_block) {
  End& end = out_[static_cast<size_t>(thread_block)];
  const size_t slot = SlotOf(end.count);
  return MayPush(&end) && Complete(end, &end.requests[slot], nullptr) ? Memory(&end, slot) : nullptr;
}

void MpiLinks::Push(int thread_block, int64_t bytes) {
  End& end = out_[static_cast<size_t>(thread_block)];
  const size_t slot = SlotOf(end.count++);
  Failed(end, comm_.mpi().Isend(Memory(&end, slot), static_cast<int>(bytes), comm_.mpi().byte(), end.wire.peer,
                                DataTag(end.wire.there), comm_.get(), &end.requests[slot]));
}

const std::byte* MpiLinks::Peek(int thread_block, int64_t bytes) {
  End& end = in_[static_cast<size_t>(thread_block)];
  const size_t slot = SlotOf(end.count);
  if (end.count >= end.asked) return nullptr;
  if (end.came[slot] < 0) {
    net::Mpi::Received received;
    if (!Complete(end, &end.requests[slot], &received)) return nullptr;
    end.came[slot] = received.count;
  }
  if (end.came[slot] == bytes) return Memory(&end, slot);
  Failed(end, {StatusCode::kInternal, "a message of " + std::to_string(end.came[slot]) + " bytes came, where one of " +
                                          std::to_string(bytes) + " was due"});
  return nullptr;
}

void MpiLinks::Pop(int thread_block) {
  End& end = in_[static_cast<size_t>(thread_block)];
  ++end.count;
  Receive(&end);
  if (end.credits >= end.all_credits || end.count < (end.credits + 1) * share()) return;
  ++end.credits;
  std::erase_if(end.credit, [&](net::MpiRequest& request) { return Complete(end, &request, nullptr); });
  end.credit.push_back(comm_.mpi().null_request());
  Failed(end, comm_.mpi().Isend(nullptr, 0, comm_.mpi().byte(), end.wire.peer, CreditTag(end.wire.here), comm_.get(),
                                &end.credit.back()));
}

}  // namespace horocache::program
