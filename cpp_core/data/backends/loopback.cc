// The backend for a single rank: the same kernels as in the other backends, and no peers to wait for.

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "control/signature.h"
#include "data/backends/backends.h"
#include "data/backends/segment_cursor.h"
#include "data/kernels/fold.h"
#include "data/row_layout.h"
#include "data/validate.h"
#include "data/zero_fill.h"

namespace horocache::data {
namespace {

constexpr int64_t kTestBytes = 512 << 10;  // budget of one Test

// Copies or scales the input to the output, a piece in each Test.
class LoopbackTask : public CollectiveTask {
 public:
  LoopbackTask(Collective collective, const KernelSet* kernels, DataCounters* counters)
      : collective_(std::move(collective)),
        counters_(*counters),
        element_bytes_(static_cast<int64_t>(DTypeBytes(collective_.dtype))) {
    for (const Segment& segment : collective_.segments) total_ += segment.count;
    ++counters_.operations;
    counters_.payload_bytes += static_cast<uint64_t>(total_ * element_bytes_);
    if (wire::HasReduceOp(collective_.op)) {
      function_ = kernels->Find(collective_.dtype, collective_.reduce_op);
      scaling_ = MakeScaling(collective_.dtype, collective_.reduce_op, collective_.prescale, collective_.postscale, 1);
    }
    if (!collective_.joined.empty()) total_ = 0;
  }

  bool Test() override {
    if (!prepared_) Prepare();
    prepared_ = true;
    const FloatMode mode;
    int64_t budget = kTestBytes;
    while (status_.ok() && done_ < total_ && budget > 0) Piece(&budget);
    while (status_.ok() && !gaps_.done() && budget > 0) FillGap(&budget);
    return !status_.ok() || (done_ >= total_ && gaps_.done());
  }

  Status status() const override { return status_; }
  bool progressed() const override { return true; }

 private:
  void Prepare() {
    const bool on_rows = collective_.op != wire::Op::kBarrier && !control::Fuses(collective_.op);
    if (on_rows && collective_.joined.empty()) status_ = PrepareRows();
    cursor_ = SegmentCursor(&collective_.segments, static_cast<size_t>(element_bytes_));
  }

  // Checks the rows, allocates the result, and replaces the segments by the one that is to be copied.
  Status PrepareRows() {
    StatusOr<std::vector<RowPart>> sends = SendParts(collective_, 0, 1);
    if (!sends.ok()) return sends.status();
    const bool splits = collective_.op == wire::Op::kAlltoall || collective_.op == wire::Op::kScatter;
    StatusOr<std::vector<int64_t>> rows = std::vector<int64_t>();
    if (splits) {
      rows = SplitsOf(collective_, 0, 1);
    } else if (StatusOr<int64_t> all = RowsOf(collective_, 0); all.ok()) {
      rows->push_back(*all);
    }
    if (!rows.ok()) return rows.status();
    StatusOr<ReceivePlan> plan = PlanReceive(collective_, *rows, 0, 1);
    if (!plan.ok()) return plan.status();
    Segment& segment = collective_.segments.emplace_back();
    std::byte* result = collective_.segments.front().output;
    if (collective_.output != nullptr) {
      collective_.output->rows = *rows;
      StatusOr<std::byte*> memory = collective_.output->allocate(plan->elements * element_bytes_);
      if (!memory.ok()) return memory.status();
      result = *memory;
    }
    gaps_ = ZeroFiller(*plan, collective_.ZeroedIn(result), element_bytes_);
    total_ = (*sends)[0].count;
    const std::byte* const input = collective_.segments.front().input;
    segment.count = total_;
    segment.input = input == nullptr ? nullptr : input + (*sends)[0].first * element_bytes_;
    segment.output = result == nullptr ? nullptr : result + plan->parts[0].first * element_bytes_;
    collective_.segments.erase(collective_.segments.begin(), collective_.segments.end() - 1);
    return Status::Ok();
  }

  void FillGap(int64_t* budget) {
    const int64_t bytes = gaps_.Fill(std::max<int64_t>(1, *budget / element_bytes_));
    counters_.bytes_copied += static_cast<uint64_t>(bytes);
    *budget -= bytes;
  }

  void Piece(int64_t* budget) {
    cursor_.Seek(done_);
    const int64_t run = cursor_.Run(std::min(total_ - done_, std::max<int64_t>(1, *budget / element_bytes_)));
    const std::byte* const input = cursor_.input();
    std::byte* const output = cursor_.output();
    const int64_t bytes = run * element_bytes_;
    if (output != nullptr && (output != input || !scaling_.none())) {
      if (function_ != nullptr) {
        FoldCall call;
        call.inputs = &input;
        call.num_inputs = 1;
        call.count = run;
        call.output = output;
        call.scaling = scaling_;
        Fold(function_, collective_.dtype, call);
      } else {
        std::memcpy(output, input, static_cast<size_t>(bytes));
      }
      counters_.bytes_copied += static_cast<uint64_t>(bytes);
    }
    done_ += run;
    *budget -= bytes;
  }

  Collective collective_;
  DataCounters& counters_;
  const int64_t element_bytes_;
  FoldFunction function_ = nullptr;
  Scaling scaling_;
  SegmentCursor cursor_;
  ZeroFiller gaps_;
  bool prepared_ = false;
  int64_t total_ = 0;
  int64_t done_ = 0;
  Status status_;
};

// Threads: the driving thread.
class LoopbackBackend : public Backend {
 public:
  explicit LoopbackBackend(const KernelSet* kernels) : kernels_(kernels) {}

  const control::BackendTraits& traits() const override { return traits_; }
  Status Supports(const Collective& collective) const override { return CheckCollective(collective, traits_, 1); }
  std::unique_ptr<CollectiveTask> Start(Collective collective) override {
    return std::make_unique<LoopbackTask>(std::move(collective), kernels_, &counters_);
  }
  const DataCounters& counters() const override { return counters_; }

 private:
  const control::BackendTraits traits_ = LoopbackTraits();
  const KernelSet* const kernels_;
  DataCounters counters_;
};

}  // namespace

control::BackendTraits LoopbackTraits() {
  return {.name = "loopback",
          .ops = AllCollectives(),
          .device_classes = 1u << static_cast<int>(wire::DeviceClass::kCpu),
          .max_ranks = 1,
          .algorithms = {"copy"},
          .plain_fold = true};
}

std::unique_ptr<Backend> MakeLoopbackBackend(const KernelSet* kernels) {
  return std::make_unique<LoopbackBackend>(kernels);
}

}  // namespace horocache::data
