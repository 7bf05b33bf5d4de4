#include "data/backends/shm_operation.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "data/kernels/copy.h"

namespace horocache::data {
namespace {

// Of one Test: about 100 us where memory is slow.
constexpr int64_t kBudgetBytes = 256 << 10;
// What a piece costs besides its bytes: very many tiny segments must not make a Test long.
constexpr int64_t kPieceBytes = 64;
// A piece of work worth waking the others for first, rather than after it.
constexpr int64_t kLongBytes = 16 << 10;
// An output that does not stay in the caches until it is read.
constexpr int64_t kLargeBytes = 8 << 20;
// A result of which the allocation may well fail: the ranks ask each other before they go on.
constexpr int64_t kConfirmedBytes = 1 << 20;
constexpr int64_t kRefusedCount = -1;

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

// 4 bits op, 4 reduce op, 4 dtype, 8 algorithm, 20 root + 1, 24 sequence.
uint64_t EncodeKind(const Collective& c) {
  return static_cast<uint64_t>(c.op) | static_cast<uint64_t>(c.reduce_op) << 4 | static_cast<uint64_t>(c.dtype) << 8 |
         static_cast<uint64_t>(c.algorithm) << 12 | (static_cast<uint64_t>(c.root + 1) & 0xfffff) << 20 |
         (c.sequence & 0xffffff) << 40;
}

std::string Describe(const TileHeader& header) {
  const auto op = static_cast<wire::Op>(header.kind & 0xf);
  std::string text(wire::OpName(op));
  if (op == wire::Op::kAllreduce || op == wire::Op::kReduce || op == wire::Op::kReducescatter) {
    text += " " + std::string(wire::ReduceOpName(static_cast<wire::ReduceOp>(header.kind >> 4 & 0xf)));
  }
  text +=
      " of " + std::string(DTypeName(static_cast<DType>(std::min<uint64_t>(header.kind >> 8 & 0xf, kNumDTypes - 1))));
  const int64_t root = static_cast<int64_t>(header.kind >> 20 & 0xfffff) - 1;
  if (root >= 0) text += ", root " + std::to_string(root);
  text += ", algorithm " + std::to_string(header.kind >> 12 & 0xff) + ", sequence " + std::to_string(header.kind >> 40);
  if (header.count == kRefusedCount) return text + ", with arguments that it refused itself";
  return text + ", " + std::to_string(header.count) + " elements";
}

}  // namespace

bool ShmQueue::Drive(ShmOperation* operation) {
  bool moved = false;
  while (!operation->done_) {
    ShmOperation* head = waiting.front();
    const bool finished = head->Advance(kBudgetBytes);
    moved = moved || head->progressed_;
    if (!finished) break;
    head->done_ = true;
    port.FinishTiles(head->tiles_);
    waiting.pop_front();
  }
  operation->progressed_ = moved;
  port.Ring();
  return operation->done_;
}

void ShmQueue::Abandon(ShmOperation* operation) {
  waiting.erase(std::remove(waiting.begin(), waiting.end(), operation), waiting.end());
  if (!broken.ok()) return;
  broken = Status(StatusCode::kAborted, operation->collective_.Rank(port.rank()) + " gave up " +
                                            std::string(wire::OpName(operation->collective_.op)) +
                                            " half way; this lane cannot be used any more");
}

ShmOperation::ShmOperation(ShmQueue* queue, Collective collective)
    : queue_(*queue),
      port_(queue->port),
      collective_(std::move(collective)),
      element_bytes_(static_cast<int64_t>(DTypeBytes(collective_.dtype))) {
  if (!collective_.joined.empty()) {
    joined_.resize(size(), 0);
    for (const int32_t r : collective_.joined) joined_[r] = 1;
  }
  for (const Segment& segment : collective_.segments) {
    queue_.counters.payload_bytes += static_cast<uint64_t>(segment.count * element_bytes_);
  }
  ++queue_.counters.operations;
  queue_.waiting.push_back(this);
}

ShmOperation::~ShmOperation() {
  if (!done_) queue_.Abandon(this);
}

bool ShmOperation::Test() {
  if (done_) return true;
  if (!queue_.broken.ok()) {
    status_ = queue_.broken;
    queue_.waiting.erase(std::remove(queue_.waiting.begin(), queue_.waiting.end(), this), queue_.waiting.end());
    done_ = true;
    return true;
  }
  return queue_.Drive(this);
}

bool ShmOperation::Advance(int64_t budget) {
  const FloatMode mode;
  if (!begun_) {
    begun_ = true;
    first_ = port_.first_tile();
  }
  progressed_ = false;
  while (!ended_ && !Complete()) {
    wait_ = Wait::kNone;
    if (!Step(&budget)) break;
    progressed_ = true;
    if (budget <= 0) break;
  }
  return ended_ || Complete();
}

TileHeader ShmOperation::MakeHeader() const {
  uint64_t detail = Mix(0, std::bit_cast<uint64_t>(collective_.prescale));
  detail = Mix(detail, std::bit_cast<uint64_t>(collective_.postscale));
  detail = Mix(detail, static_cast<uint64_t>(collective_.Divisor(size())));
  for (const int32_t r : collective_.joined) detail = Mix(detail, static_cast<uint64_t>(r) + 1);
  if (collective_.op == wire::Op::kReducescatter) {
    detail = Mix(detail, static_cast<uint64_t>(collective_.row_elements));
  }
  return {EncodeKind(collective_), refused() ? kRefusedCount : header_count_, detail};
}

void ShmOperation::PublishFirst() {
  port_.header(rank(), first_) = MakeHeader();
  port_.PublishPacked(first_);
}

bool ShmOperation::HeadersArrived() {
  if (agreed_) return true;
  if (!AllPacked(0)) return false;
  const TileHeader& mine = port_.header(rank(), first_);
  for (int r = 0; r < size(); ++r) {
    const TileHeader& theirs = port_.header(r, first_);
    if (theirs == mine) continue;
    std::string what = collective_.Rank(r) + " runs " + Describe(theirs) + ", but " + collective_.Rank(rank()) +
                       " runs " + Describe(mine);
    if (theirs.kind == mine.kind && theirs.count == mine.count) what += "; rows, scales or joined ranks differ";
    EndAfterFirstTile(refused() ? refused_ : Status(StatusCode::kMismatch, what));
    return true;
  }
  agreed_ = true;
  if (refused()) EndAfterFirstTile(refused_);
  return true;
}

void ShmOperation::EndAfterFirstTile(Status why) {
  status_ = std::move(why);
  tiles_ = 1;
  ended_ = true;
  port_.PublishConsumed(first_);
}

std::byte* ShmOperation::AllocateResult(int64_t bytes, int64_t largest) {
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

bool ShmOperation::AllAllocated() {
  if (!confirms_) return true;
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && !port_.Reduced(r, first_)) return Block(Wait::kReduced, 0);
  }
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

bool ShmOperation::Block(Wait wait, uint64_t tile) {
  if (wait_ == Wait::kNone) {
    wait_ = wait;
    wait_tile_ = first_ + tile;
  }
  return false;
}

bool ShmOperation::AllPacked(uint64_t tile) {
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && !port_.Packed(r, first_ + tile)) return Block(Wait::kPacked, tile);
  }
  return true;
}

bool ShmOperation::joined(int rank) const { return !joined_.empty() && joined_[rank] != 0; }

void ShmOperation::Move(std::byte* to, const std::byte* from, int64_t bytes, bool stream, int64_t* budget) {
  if (bytes >= kLongBytes) port_.Ring();
  Copy(to, from, static_cast<size_t>(bytes), stream);
  queue_.counters.bytes_copied += static_cast<uint64_t>(bytes);
  Charge(bytes, budget);
}

void ShmOperation::FoldNow(FoldFunction function, const FoldCall& call, int64_t* budget) {
  const int64_t bytes = call.count * element_bytes_;
  if (bytes >= kLongBytes) port_.Ring();
  Fold(function, collective_.dtype, call);
  queue_.counters.bytes_copied += static_cast<uint64_t>(bytes) * (call.second != nullptr ? 2 : 1);
  Charge(bytes, budget);
}

void ShmOperation::Charge(int64_t bytes, int64_t* budget) { *budget -= bytes + kPieceBytes; }

bool ShmOperation::Large(int64_t bytes) { return bytes >= kLargeBytes; }

int64_t ShmOperation::PieceElements(int64_t budget) const {
  constexpr int64_t kLine = 64;
  return (std::max<int64_t>(budget, 1) + kLine - 1) / kLine * kLine / element_bytes_;
}

bool ShmOperation::Reached(int rank) const {
  switch (wait_) {
    case Wait::kPacked:
      return port_.Packed(rank, wait_tile_);
    case Wait::kReduced:
      return port_.Reduced(rank, wait_tile_);
    case Wait::kConsumed:
      return port_.Consumed(rank, wait_tile_ - ShmPort::kDepth);
    case Wait::kNone:
      break;
  }
  return true;
}

std::vector<int> ShmOperation::WaitingFor() const {
  std::vector<int> ranks;
  if (done_ || queue_.waiting.empty()) return ranks;
  const ShmOperation* head = queue_.waiting.front();
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && !head->Reached(r)) ranks.push_back(r);
  }
  return ranks;
}

}  // namespace horocache::data
