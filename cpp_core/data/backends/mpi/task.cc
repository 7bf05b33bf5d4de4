#include "data/backends/mpi/task.h"

#include <utility>

namespace horocache::data {

bool ScalesFirst(const Collective& collective) {
  const bool sums = collective.reduce_op == wire::ReduceOp::kSum || collective.reduce_op == wire::ReduceOp::kAverage;
  return wire::HasReduceOp(collective.op) && sums && Is16BitFloat(collective.dtype);
}

MpiQueue::MpiQueue(MpiResources* resources, const BackendOptions& options, const KernelSet* kernel_set)
    : comm(std::move(resources->all)),
      host_of(resources->host_of),
      kernels(kernel_set),
      max_count(options.mpi_max_count),
      folds(&comm.mpi()) {}

int64_t MpiQueue::MessageElements(int peer, int64_t element_bytes) const {
  constexpr int64_t kEagerBytes = 60 << 10;
  const bool far = host_of[static_cast<size_t>(peer)] != host_of[static_cast<size_t>(comm.rank())];
  return far ? std::min(max_count, kEagerBytes / element_bytes) : max_count;
}

MpiTask::MpiTask(MpiQueue* queue, Collective collective)
    : QueuedTask(queue, std::move(collective), queue->comm.rank(), queue->comm.size()), queue_(*queue) {
  for (const Segment& segment : collective_.segments) total_ += segment.count;
  if (wire::HasReduceOp(collective_.op)) PrepareFold(*queue->kernels);
}

void MpiTask::Finish(Status status) {
  status_ = std::move(status);
  ended_ = true;
}

net::MpiRequest* MpiTask::NextRequest() {
  requests_.push_back(mpi().null_request());
  return &requests_.back();
}

bool MpiTask::Started(const Status& status) {
  if (status.ok()) return true;
  queue_.Break({status.code(), std::string(wire::OpName(collective_.op)) + " on " + collective_.Rank(rank()) + ": " +
                                   status.message()});
  Finish(queue_.broken());
  return false;
}

bool MpiTask::RequestsDone() {
  while (!requests_.empty()) {
    if (!RequestDone(&requests_.back())) return false;
    requests_.pop_back();
  }
  return true;
}

bool MpiTask::RequestDone(net::MpiRequest* request) {
  if (mpi().IsNull(*request)) return true;
  const StatusOr<bool> complete = mpi().Test(request, nullptr);
  if (!complete.ok()) return !Started(complete.status());
  return *complete;
}

void MpiTask::Move(std::byte* to, const std::byte* from, int64_t bytes, int64_t* budget) {
  Copied(to, from, bytes, false, budget);
}

}  // namespace horocache::data
