#include "data/backends/row_counting.h"

#include <algorithm>
#include <utility>

namespace horocache::data {

Collective RowCounting::Part(const Collective& collective, int64_t elements) {
  Collective part;
  part.op = collective.op;
  part.reduce_op = collective.reduce_op;
  part.dtype = collective.dtype;
  part.root = collective.root;
  part.row_elements = 0;
  part.elements_elsewhere = collective.row_elements;
  part.rows = collective.rows;
  if (part.rows < 0) part.rows = elements / std::max<int64_t>(1, collective.row_elements);
  part.splits = collective.splits;
  part.send_starts = collective.send_starts;
  part.receive_rows = collective.receive_rows;
  part.receive_starts = collective.receive_starts;
  part.names = collective.names;
  part.output = &counts_;
  part.segments.emplace_back();
  return part;
}

bool RowCounting::Test() {
  if (!task_->Test()) return false;
  status_ = task_->status();
  task_.reset();
  ended_ = true;
  return true;
}

Status RowCounting::Plan(const Collective& collective, int rank, int ranks, std::vector<RowPart>* sends,
                         ReceivePlan* receives) {
  StatusOr<std::vector<RowPart>> parts = SendParts(collective, rank, ranks);
  if (!parts.ok()) return parts.status();
  *sends = std::move(*parts);
  collective.output->rows = counts_.rows;
  if (collective.op == wire::Op::kReducescatter) {
    receives->elements = (*sends)[static_cast<size_t>(rank)].count;
    return Status::Ok();
  }
  StatusOr<ReceivePlan> plan = PlanReceive(collective, counts_.rows, rank, ranks);
  if (plan.ok()) *receives = std::move(*plan);
  return plan.status();
}

}  // namespace horocache::data
