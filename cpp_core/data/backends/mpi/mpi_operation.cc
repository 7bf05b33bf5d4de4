#include "data/backends/mpi/mpi_operation.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "data/kernels/copy.h"

namespace horocache::data {
namespace {

// Of one Test: about 100 us where memory is slow.
constexpr int64_t kBudgetBytes = 256 << 10;
// What a piece costs besides its bytes.
constexpr int64_t kPieceBytes = 64;

bool Folds(wire::Op op) {
  return op == wire::Op::kAllreduce || op == wire::Op::kReduce || op == wire::Op::kReducescatter;
}

}  // namespace

MpiQueue::MpiQueue(net::Communicator communicator, const BackendOptions& options, const KernelSet* kernel_set)
    : comm(std::move(communicator)), kernels(kernel_set), max_count(options.mpi_max_count), folds(&comm.mpi()) {}

bool MpiQueue::Drive(MpiOperation* operation) {
  bool moved = false;
  while (!operation->done_) {
    MpiOperation* const head = waiting.front();
    moved |= head->Advance();
    if (!head->done_) break;
    waiting.pop_front();
  }
  operation->progressed_ = moved;
  return operation->done_;
}

MpiOperation::MpiOperation(MpiQueue* queue, Collective collective)
    : queue_(*queue),
      collective_(std::move(collective)),
      element_bytes_(static_cast<int64_t>(DTypeBytes(collective_.dtype))) {
  if (!collective_.joined.empty()) {
    joined_.resize(static_cast<size_t>(size()), 0);
    for (const int32_t r : collective_.joined) joined_[static_cast<size_t>(r)] = 1;
  }
  for (const Segment& segment : collective_.segments) total_ += segment.count;
  if (Folds(collective_.op)) {
    function_ = queue->kernels->Find(collective_.dtype, collective_.reduce_op);
    scaling_ = MakeScaling(collective_.dtype, collective_.reduce_op, collective_.prescale, collective_.postscale,
                           collective_.Divisor(size()));
  }
  ++queue_.counters.operations;
  queue_.counters.payload_bytes += static_cast<uint64_t>(total_ * element_bytes_);
  queue_.waiting.push_back(this);
}

// What is under way reads and writes the caller's memory, and cannot be taken back: an operation is given up only when
// the job is lost, and then the process is to end.
MpiOperation::~MpiOperation() {
  if (done_) return;
  std::erase(queue_.waiting, this);
  if (!queue_.broken.ok()) return;
  queue_.comm.Abandon();
  queue_.broken =
      Status(StatusCode::kAborted, collective_.Rank(rank()) + " gave up " + std::string(wire::OpName(collective_.op)) +
                                       " half way; this lane cannot be used any more");
}

bool MpiOperation::Test() {
  if (done_) return true;
  if (!queue_.broken.ok()) {
    std::erase(queue_.waiting, this);
    Finish(queue_.broken);
    return true;
  }
  return queue_.Drive(this);
}

// True if anything moved.
bool MpiOperation::Advance() {
  const FloatMode mode;
  bool moved = false;
  for (int64_t budget = kBudgetBytes; !done_ && budget > 0 && Step(&budget);) moved = true;
  return moved || done_;
}

void MpiOperation::Finish(Status status) {
  status_ = std::move(status);
  done_ = true;
}

net::MpiRequest* MpiOperation::NextRequest() {
  requests_.push_back(mpi().null_request());
  return &requests_.back();
}

bool MpiOperation::Started(const Status& status) {
  if (status.ok()) return true;
  queue_.broken = Status(status.code(), std::string(wire::OpName(collective_.op)) + " on " + collective_.Rank(rank()) +
                                            ": " + status.message());
  Finish(queue_.broken);
  return false;
}

bool MpiOperation::RequestsDone() {
  while (!requests_.empty()) {
    if (!RequestDone(&requests_.back())) return false;
    requests_.pop_back();
  }
  return true;
}

bool MpiOperation::RequestDone(net::MpiRequest* request) {
  if (mpi().IsNull(*request)) return true;
  const StatusOr<bool> complete = mpi().Test(request, nullptr);
  if (!complete.ok()) return !Started(complete.status());
  return *complete;
}

void MpiOperation::Move(std::byte* to, const std::byte* from, int64_t bytes, int64_t* budget) {
  Copy(to, from, static_cast<size_t>(bytes), false);
  queue_.counters.bytes_copied += static_cast<uint64_t>(bytes);
  *budget -= bytes + kPieceBytes;
}

void MpiOperation::FoldNow(const FoldCall& call, int64_t* budget) {
  const int64_t bytes = call.count * element_bytes_;
  Fold(function_, collective_.dtype, call);
  queue_.counters.bytes_copied += static_cast<uint64_t>(bytes);
  *budget -= bytes + kPieceBytes;
}

int64_t MpiOperation::PieceElements(int64_t budget) const {
  constexpr int64_t kLine = 64;
  return (std::max<int64_t>(budget, 1) + kLine - 1) / kLine * kLine / element_bytes_;
}

}  // namespace horocache::data
