// A backend that the program implements: see Note [Backends of the program] in calls.h.
//
// The backend does what every backend must do, so that the program's part is a bare exchange: it packs several tensors
// into one array, multiplies by factors, divides averages, counts rows and lays them out.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "control/signature.h"
#include "data/backends/backends.h"
#include "data/backends/queued_task.h"
#include "data/backends/row_counting.h"
#include "data/backends/segment_cursor.h"
#include "data/backends/user/calls.h"
#include "data/validate.h"
#include "data/zero_fill.h"

namespace horocache::data {
namespace {

// How long a thread of the program may take to notice that its call is cancelled, in ns.
constexpr int64_t kCancelNs = kNsPerS;

struct UserQueue : TaskQueue {
  UserQueue(std::unique_ptr<Backend> counter, std::shared_ptr<UserCalls> to_program, std::string its_name,
            const KernelSet* set)
      : host(std::move(counter)), calls(std::move(to_program)), name(std::move(its_name)), kernels(set) {}

  // Scratch memory that no call uses any more.
  std::shared_ptr<FusionBuffer> Scratch() {
    if (scratch == nullptr || scratch.use_count() > 1) scratch = std::make_shared<FusionBuffer>();
    return scratch;
  }

  const std::unique_ptr<Backend> host;  // counts rows
  const std::shared_ptr<UserCalls> calls;
  const std::string name;
  const KernelSet* const kernels;
  std::shared_ptr<FusionBuffer> scratch;
};

class UserTask : public QueuedTask {
 public:
  UserTask(UserQueue* queue, Collective collective, int rank, int size)
      : QueuedTask(queue, std::move(collective), rank, size), queue_(*queue) {
    for (const Segment& segment : collective_.segments) total_ += segment.count;
    cursor_ = SegmentCursor(&collective_.segments, static_cast<size_t>(element_bytes_));
  }

  bool must_poll() const override { return counting_.task() != nullptr && counting_.task()->must_poll(); }
  observe::Phase phase() const override {
    if (state_ == State::kUnpacking) return observe::Phase::kUnpack;
    return state_ == State::kPacking ? observe::Phase::kPack : observe::Phase::kTransfer;
  }
  void AddWaitingFor(std::vector<int>* ranks) const override {
    if (counting_.task() != nullptr) counting_.task()->AddWaitingFor(ranks);
  }
  std::string Details() const override {
    if (state_ == State::kCounting) return "\n  the ranks tell each other their numbers of rows";
    return state_ == State::kRunning ? "\n  the program's backend " + queue_.name + " has not ended it" : "";
  }

 private:
  enum class State { kStarting, kCounting, kPacking, kRunning, kUnpacking, kEnded };

  bool Step(int64_t* budget) override;
  bool Finished() const override { return state_ == State::kEnded; }

  bool on_rows() const { return wire::WorksOnRows(collective_.op); }
  bool averages() const { return collective_.reduce_op == wire::ReduceOp::kAverage; }
  bool reduces() const { return wire::HasReduceOp(collective_.op); }
  void ChooseScaling();
  bool End(const Status& status);
  // Breaks the backend, and so ends the job, if `status` is an error: this rank alone has it. Returns true.
  bool OrBreak(const Status& status);
  bool Count();
  Status PlaceRows();
  Status PlaceTensors();
  bool Pack(int64_t* budget);
  bool Push();
  bool Await();
  bool Unpack(int64_t* budget);
  // Multiplies the next elements of `from` into `to`.
  void Scale(const std::byte* from, std::byte* to, int64_t count, const Scaling& scaling, int64_t* budget);

  UserQueue& queue_;
  State state_ = State::kStarting;
  RowCounting counting_;
  std::shared_ptr<UserCall> call_ = std::make_shared<UserCall>();
  SegmentCursor cursor_;
  ZeroFiller gaps_;
  Scaling before_, after_;
  int64_t total_ = 0;   // elements of the tensors
  int64_t copied_ = 0;  // elements that this state has packed or unpacked
};

bool UserTask::Step(int64_t* budget) {
  switch (state_) {
    case State::kStarting:
      if (reduces()) ChooseScaling();
      state_ = on_rows() ? State::kCounting : State::kPacking;
      if (!on_rows()) return OrBreak(PlaceTensors());
      counting_.Started(queue_.host->Start(counting_.Part(collective_, total_)));
      return true;
    case State::kCounting:
      return Count();
    case State::kPacking:
      return Pack(budget);
    case State::kRunning:
      return Await();
    case State::kUnpacking:
      return Unpack(budget);
    case State::kEnded:
      break;
  }
  return false;
}

// The sum of 16-bit floats may exceed their range where the average does not, so these are multiplied before it.
void UserTask::ChooseScaling() {
  const wire::ReduceOp op = averages() ? wire::ReduceOp::kAverage : wire::ReduceOp::kSum;
  const int divisor = collective_.Divisor(size());
  const bool adds = averages() || collective_.reduce_op == wire::ReduceOp::kSum;
  if (adds && element_bytes_ == 2 && IsFloat(collective_.dtype)) {
    before_.before = collective_.prescale * collective_.postscale / (averages() ? divisor : 1);
  } else {
    before_.before = collective_.prescale;
    after_ = MakeScaling(collective_.dtype, op, 1.0, collective_.postscale, divisor);
  }
}

bool UserTask::End(const Status& status) {
  status_ = status;
  state_ = State::kEnded;
  return true;
}

bool UserTask::OrBreak(const Status& status) {
  if (status.ok()) return true;
  queue_.Break(status);
  return End(status);
}

bool UserTask::Count() {
  if (!counting_.Test()) return counting_.task()->progressed();
  if (!counting_.status().ok()) return End(counting_.status());  // on all ranks
  state_ = State::kPacking;
  return OrBreak(PlaceRows());
}

Status UserTask::PlaceRows() {
  ReceivePlan plan;
  HC_RETURN_IF_ERROR(counting_.Plan(collective_, rank(), size(), &call_->sends, &plan));
  StatusOr<std::byte*> result = collective_.output->allocate(plan.elements * element_bytes_);
  if (!result.ok()) return result.status();
  gaps_ = ZeroFiller(plan, collective_.ZeroedIn(*result), element_bytes_);
  call_->receives = std::move(plan.parts);
  call_->output = *result;
  call_->output_count = plan.elements;
  call_->input = collective_.segments[0].input;
  call_->input_count = total_;
  if (before_.none() || total_ == 0) return Status::Ok();
  call_->scratch = queue_.Scratch();
  call_->input = nullptr;
  return call_->scratch->Reserve(total_ * element_bytes_);
}

Status UserTask::PlaceTensors() {
  call_->input_count = call_->output_count = total_;
  const bool is_one = collective_.segments.size() == 1 && collective_.segments[0].output != nullptr;
  if (is_one) {
    call_->output = collective_.segments[0].output;
  } else if (total_ > 0) {
    call_->scratch = queue_.Scratch();
    HC_RETURN_IF_ERROR(call_->scratch->Reserve(total_ * element_bytes_));
    call_->output = call_->scratch->data();
  }
  call_->input = call_->output;
  return Status::Ok();
}

void UserTask::Scale(const std::byte* from, std::byte* to, int64_t count, const Scaling& scaling, int64_t* budget) {
  FoldCall fold;
  fold.inputs = &from;
  fold.num_inputs = 1;
  fold.count = count;
  fold.output = to;
  fold.scaling = scaling;
  Fold(queue_.kernels->Find(collective_.dtype, wire::ReduceOp::kSum), collective_.dtype, fold);
  Charge(count * element_bytes_, budget);
}

bool UserTask::Pack(int64_t* budget) {
  const bool scales = !before_.none();
  std::byte* const into =
      on_rows() ? (scales && call_->scratch != nullptr ? call_->scratch->data() : nullptr) : call_->output;
  const bool in_place =
      !on_rows() && !scales && collective_.segments.size() == 1 && collective_.segments[0].input == call_->output;
  if (into == nullptr || in_place) copied_ = total_;
  while (copied_ < total_ && *budget > 0) {
    cursor_.Seek(copied_);
    std::byte* const to = into + copied_ * element_bytes_;
    const int64_t most = std::min(total_ - copied_, PieceElements(*budget));
    if (scales) {
      const int64_t run = cursor_.Run(most);
      Scale(cursor_.input(), to, run, before_, budget);
      copied_ += run;
    } else {
      Gather(cursor_, to, most, budget);
      copied_ += most;
    }
  }
  return copied_ < total_ || Push();
}

bool UserTask::Push() {
  if (on_rows() && call_->scratch != nullptr) call_->input = call_->scratch->data();
  call_->op = collective_.op;
  call_->reduce_op = averages() ? wire::ReduceOp::kSum : collective_.reduce_op;
  call_->dtype = collective_.dtype;
  call_->root = collective_.root;
  call_->name = std::string(wire::OpName(collective_.op));
  queue_.calls->Push(call_);
  state_ = State::kRunning;
  copied_ = 0;
  return true;
}

bool UserTask::Await() {
  Status ended;
  if (!queue_.calls->TakeEnd(&ended)) return false;
  if (!ended.ok()) {
    return OrBreak({StatusCode::kAborted, "backend " + queue_.name + " failed on " + collective_.Rank(rank()) + " in " +
                                              std::string(wire::OpName(collective_.op)) + ": " + ended.message()});
  }
  state_ = State::kUnpacking;
  return true;
}

bool UserTask::Unpack(int64_t* budget) {
  while (!gaps_.done() && *budget > 0) Charge(gaps_.Fill(PieceElements(*budget)), budget);
  const bool scales = !after_.none();
  const bool spread = !on_rows() && call_->scratch != nullptr;
  const int64_t total = call_->output_count;
  if (!scales && !spread) copied_ = total;
  while (copied_ < total && *budget > 0) {
    std::byte* const from = call_->output + copied_ * element_bytes_;
    const int64_t most = std::min(total - copied_, PieceElements(*budget));
    if (scales) Scale(from, from, most, after_, budget);
    if (spread) {
      cursor_.Seek(copied_);
      Scatter(cursor_, from, most, budget);
    }
    copied_ += most;
  }
  return copied_ < total || !gaps_.done() || End(Status::Ok());
}

// Threads: the driving thread. Shares the calls with a thread of the program.
class UserBackend : public Backend {
 public:
  UserBackend(control::BackendTraits traits, std::unique_ptr<Backend> host, std::shared_ptr<UserCalls> calls, int rank,
              int ranks, const KernelSet* kernels)
      : rank_(rank),
        ranks_(ranks),
        traits_(std::move(traits)),
        queue_(std::move(host), std::move(calls), traits_.name, kernels) {}
  ~UserBackend() override { queue_.calls->Close(); }

  const control::BackendTraits& traits() const override { return traits_; }

  Status Supports(const Collective& collective) const override {
    HC_RETURN_IF_ERROR(CheckCollective(collective, traits_, ranks_));
    if (collective.joined.empty()) return Status::Ok();
    return UnsupportedError("backend " + traits_.name + " runs nothing while ranks have joined; name another backend");
  }

  std::unique_ptr<CollectiveTask> Start(Collective collective) override {
    return std::unique_ptr<CollectiveTask>(new (&queue_) UserTask(&queue_, std::move(collective), rank_, ranks_));
  }

  const DataCounters& counters() const override { return queue_.counters; }
  Status broken() const override { return queue_.broken().ok() ? queue_.host->broken() : queue_.broken(); }

  void Abandon(const Status&) override { queue_.calls->Close(); }
  Status AwaitDevices() override {
    queue_.calls->Close();
    if (queue_.calls->AwaitIdle(NowNs() + kCancelNs)) return Status::Ok();
    return {StatusCode::kAborted, "backend " + traits_.name +
                                      " has not returned on this rank, and may still write into "
                                      "its tensors, which are therefore never freed."};
  }

 private:
  const int rank_, ranks_;
  const control::BackendTraits traits_;
  UserQueue queue_;
};

}  // namespace

std::unique_ptr<Backend> MakeUserBackend(control::BackendTraits traits, std::unique_ptr<Backend> host,
                                         std::shared_ptr<UserCalls> calls, int rank, int ranks,
                                         const KernelSet* kernels) {
  return std::make_unique<UserBackend>(std::move(traits), std::move(host), std::move(calls), rank, ranks, kernels);
}

}  // namespace horocache::data
