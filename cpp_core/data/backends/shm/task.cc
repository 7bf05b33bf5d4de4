#include "data/backends/shm/task.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace horocache::data {
namespace {

// Bytes of a piece from which the other ranks are woken before the piece is processed, not after it.
constexpr int64_t kLongBytes = 16 << 10;
// Bytes of an output from which it does not stay in the caches until it is read.
constexpr int64_t kLargeBytes = 8 << 20;
// TileHeader::count of a rank whose arguments are wrong; its payload is a Reason.
constexpr int64_t kRefusedCount = -1;

struct Reason {
  StatusCode code;
  size_t bytes;  // of the text that follows
};

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

// From the lowest bit: 4 bits op, 4 reduce op, 4 dtype, 8 algorithm, 20 root + 1, 24 sequence.
uint64_t EncodeKind(const Collective& c) {
  return static_cast<uint64_t>(c.op) | static_cast<uint64_t>(c.reduce_op) << 4 | static_cast<uint64_t>(c.dtype) << 8 |
         static_cast<uint64_t>(c.algorithm) << 12 | (static_cast<uint64_t>(c.root + 1) & 0xfffff) << 20 |
         (c.sequence & 0xffffff) << 40;
}

std::string Describe(const TileHeader& header) {
  const auto op = static_cast<wire::Op>(header.kind & 0xf);
  std::string text(wire::OpName(op));
  if (wire::HasReduceOp(op)) {
    text += " " + std::string(wire::ReduceOpName(static_cast<wire::ReduceOp>(header.kind >> 4 & 0xf)));
  }
  text +=
      " of " + std::string(DTypeName(static_cast<DType>(std::min<uint64_t>(header.kind >> 8 & 0xf, kNumDTypes - 1))));
  const int64_t root = static_cast<int64_t>(header.kind >> 20 & 0xfffff) - 1;
  if (root >= 0) text += ", root " + std::to_string(root);
  text += ", algorithm " + std::to_string(header.kind >> 12 & 0xff) + ", sequence " + std::to_string(header.kind >> 40);
  return text + ", " + std::to_string(header.count) + " elements";
}

}  // namespace

ShmTask::ShmTask(ShmQueue* queue, Collective collective)
    : QueuedTask(queue, std::move(collective), queue->port.rank(), queue->port.size()),
      queue_(*queue),
      port_(queue->port) {}

bool ShmTask::Step(int64_t* budget) {
  wait_ = Wait::kNone;
  return StepTiles(budget);
}

TileHeader ShmTask::MakeHeader() const {
  uint64_t detail = Mix(0, std::bit_cast<uint64_t>(collective_.prescale));
  detail = Mix(detail, std::bit_cast<uint64_t>(collective_.postscale));
  detail = Mix(detail, static_cast<uint64_t>(collective_.Divisor(size())));
  for (const int32_t r : collective_.joined) detail = Mix(detail, static_cast<uint64_t>(r) + 1);
  if (collective_.op == wire::Op::kReducescatter) {
    detail = Mix(detail, static_cast<uint64_t>(collective_.row_elements));
  }
  return {EncodeKind(collective_), refused() ? kRefusedCount : header_count_, detail};
}

// Writes this rank's error in place of a payload.
void ShmTask::WriteReason() {
  Reason* const reason = reinterpret_cast<Reason*>(port_.payload(rank(), first_));
  const std::string& text = refused_.message();
  reason->code = refused_.code();
  reason->bytes = std::min<size_t>(text.size(), static_cast<size_t>(port_.tile_bytes()) - sizeof(Reason));
  std::memcpy(reason + 1, text.data(), reason->bytes);
}

Status ShmTask::ReasonOf(int rank) {
  const Reason* const reason = reinterpret_cast<const Reason*>(port_.payload(rank, first_));
  const size_t bytes = std::min(reason->bytes, static_cast<size_t>(port_.tile_bytes()) - sizeof(Reason));
  return {reason->code, std::string(reinterpret_cast<const char*>(reason + 1), bytes)};
}

// Ends the operation and returns true if a rank has wrong arguments.
bool ShmTask::EndRefused() {
  for (int r = 0; r < size(); ++r) {
    if (port_.header(r, first_).count != kRefusedCount) continue;
    EndAfterFirstTile(refused() ? refused_ : ReasonOf(r));  // its own error tells this rank's user more
    return true;
  }
  return false;
}

void ShmTask::PublishFirst() {
  if (refused()) WriteReason();
  port_.header(rank(), first_) = MakeHeader();
  port_.PublishPacked(first_);
}

void ShmTask::AnnounceFirst() {
  port_.header(rank(), first_) = MakeHeader();
  port_.PublishAnnounced(first_);
}

bool ShmTask::HeadersArrived() {
  if (agreed_) return true;
  if (!AllOthers(Wait::kAnnounced, 0)) return false;
  const TileHeader& mine = port_.header(rank(), first_);
  for (int r = 0; r < size(); ++r) {
    const TileHeader& theirs = port_.header(r, first_);
    if (theirs == mine && !refused()) continue;
    if (EndRefused()) return true;
    std::string what = collective_.Rank(r) + " runs " + Describe(theirs) + ", but " + collective_.Rank(rank()) +
                       " runs " + Describe(mine);
    if (theirs.kind == mine.kind && theirs.count == mine.count) what += "; rows, scales or joined ranks differ";
    EndAfterFirstTile({StatusCode::kMismatch, what});
    return true;
  }
  agreed_ = true;
  return true;
}

void ShmTask::EndAfterFirstTile(Status why) {
  status_ = std::move(why);
  tiles_ = 1;
  ended_ = true;
  port_.PublishConsumed(first_);
}

std::byte* ShmTask::AllocateResult(int64_t bytes, int64_t largest) {
  StatusOr<std::byte*> memory = static_cast<std::byte*>(nullptr);
  if (joined(rank())) {
    bytes = 0;
  } else if (collective_.output != nullptr) {
    memory = collective_.output->allocate(bytes);
  } else if (!collective_.segments.empty()) {
    memory = collective_.segments[0].output;
  }
  if (!memory.ok()) status_ = memory.status();
  confirms_ = largest >= kConfirmedBytes;
  if (confirms_) {
    port_.unallocated(rank(), first_) = memory.ok() ? 0 : bytes;
    port_.PublishReduced(first_);
  }
  return memory.ok() ? *memory : nullptr;
}

bool ShmTask::AllAllocated() {
  if (!confirms_) return true;
  if (!AllReduced(0)) return false;
  confirms_ = false;
  for (int r = 0; r < size(); ++r) {
    const int64_t bytes = port_.unallocated(r, first_);
    if (bytes == 0) continue;
    EndAfterFirstTile(!status_.ok()
                          ? status_
                          : Status(StatusCode::kOutOfMemory, collective_.Rank(r) + " has no memory for its result of " +
                                                                 std::to_string(bytes) + " bytes"));
    break;
  }
  return true;
}

bool ShmTask::Block(Wait wait, uint64_t tile) {
  if (wait_ == Wait::kNone) {
    wait_ = wait;
    wait_tile_ = first_ + tile;
  }
  return false;
}

bool ShmTask::AllOthers(Wait wait, uint64_t tile) {
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && !Reached(r, wait, first_ + tile)) return Block(wait, tile);
  }
  return true;
}

bool ShmTask::AllPacked(uint64_t tile) { return AllOthers(Wait::kPacked, tile); }
bool ShmTask::AllReduced(uint64_t tile) { return AllOthers(Wait::kReduced, tile); }

void ShmTask::Move(std::byte* to, const std::byte* from, int64_t bytes, bool stream, int64_t* budget) {
  if (bytes >= kLongBytes) port_.Ring();
  Copied(to, from, bytes, stream, budget);
}

void ShmTask::FoldNow(const FoldCall& call, int64_t* budget) {
  if (call.count * element_bytes_ >= kLongBytes) port_.Ring();
  Folded(call, budget);
}

bool ShmTask::Large(int64_t bytes) { return bytes >= kLargeBytes; }

bool ShmTask::Reached(int rank, Wait wait, uint64_t number) const {
  switch (wait) {
    case Wait::kAnnounced:
      return port_.Announced(rank, number);
    case Wait::kPacked:
      return port_.Packed(rank, number);
    case Wait::kReduced:
      return port_.Reduced(rank, number);
    case Wait::kConsumed:
      return port_.Consumed(rank, number - ShmPort::kDepth);
    case Wait::kNone:
      break;
  }
  return true;
}

bool ShmTask::Reached(int rank) const { return Reached(rank, wait_, wait_tile_); }

void ShmTask::AddWaitingFor(std::vector<int>* ranks) const {
  const auto* const head = static_cast<const ShmTask*>(queue_.head());
  if (done() || head == nullptr) return;
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && !head->Reached(r)) ranks->push_back(r);
  }
}

}  // namespace horocache::data
