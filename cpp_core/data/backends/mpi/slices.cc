#include "data/backends/mpi/slices.h"

#include <algorithm>

#include "base/memory.h"

namespace horocache::data {

Status MpiSlices::Reserve(Exchange* exchange, FusionBuffer* memory, int64_t most) {
  exchange->folded = 0;
  exchange->stride_bytes = RoundUp(most * element_bytes_, kCacheLine);
  HC_RETURN_IF_ERROR(memory->Reserve(exchange->stride_bytes * size()));
  exchange->received = memory->data();
  return Status::Ok();
}

Status MpiSlices::Send(Exchange* exchange, const std::byte* from, int64_t count, int to, int tag) {
  for (int64_t at = 0, most = queue_.MessageElements(to, element_bytes_); at < count; at += most) {
    exchange->requests.push_back(mpi().null_request());
    HC_RETURN_IF_ERROR(mpi().Isend(from + at * element_bytes_, static_cast<int>(std::min(most, count - at)), type(), to,
                                   tag, comm(), &exchange->requests.back()));
  }
  return Status::Ok();
}

Status MpiSlices::Receive(Exchange* exchange, std::byte* to, int64_t count, int from, int tag) {
  for (int64_t at = 0, most = queue_.MessageElements(from, element_bytes_); at < count; at += most) {
    exchange->requests.push_back(mpi().null_request());
    HC_RETURN_IF_ERROR(mpi().Irecv(to + at * element_bytes_, static_cast<int>(std::min(most, count - at)), type(), from,
                                   tag, comm(), &exchange->requests.back()));
  }
  return Status::Ok();
}

bool MpiSlices::Complete(Exchange* exchange) {
  while (!exchange->requests.empty()) {
    if (!RequestDone(&exchange->requests.back())) return false;
    exchange->requests.pop_back();
  }
  return true;
}

bool MpiSlices::FoldSome(Exchange* exchange, const Slice& own, std::byte* output, int64_t* budget) {
  if (exchange->folded == own.count) return false;
  const int64_t run = std::min(own.count - exchange->folded, PieceElements(*budget));
  const int64_t offset = exchange->folded * element_bytes_;
  FoldCall call;
  FoldInRankOrder(&call, [&](int r) { return (r == rank() ? own.data : From(*exchange, r)) + offset; });
  call.count = run;
  call.output = output + offset;
  Folded(call, budget);
  exchange->folded += run;
  return true;
}

}  // namespace horocache::data
