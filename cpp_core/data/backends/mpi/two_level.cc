#include "data/backends/mpi/two_level.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "data/backends/backends.h"
#include "data/backends/mpi/task.h"
#include "data/backends/segment_cursor.h"

namespace horocache::data {
namespace {

// Limits of a chunk in bytes. Small chunks overlap more work inside the hosts with work between them; large chunks
// wait less often for the network's latency.
constexpr int64_t kLeastChunkBytes = 1 << 20, kMostChunkBytes = 4 << 20;
constexpr int64_t kChunks = 4;  // per operation, within these limits

int64_t ChunkBytes(int64_t bytes) { return std::clamp(bytes / kChunks, kLeastChunkBytes, kMostChunkBytes); }

// See Note [Two levels].
class TwoLevel final : public MpiTask {
 public:
  TwoLevel(MpiQueue* queue, Collective collective)
      : MpiTask(queue, std::move(collective)),
        levels_(*queue->levels),
        reduces_(collective_.op == wire::Op::kAllreduce),
        on_root_host_(!reduces_ && levels_.host(collective_.root) == levels_.host(rank())),
        chunk_elements_(ChunkBytes(total() * element_bytes_) / element_bytes_),
        chunks_((total() + chunk_elements_ - 1) / chunk_elements_),
        cursor_(&collective_.segments, static_cast<size_t>(element_bytes_)) {}

 private:
  // An operation among the ranks of this host. A broadcast has one per chunk, an allreduce two.
  struct Local {
    bool reduces = false;
    int64_t chunk = 0;
  };

  bool Step(int64_t* budget) override;
  bool StepLocal();
  bool StepCross();
  bool Ended(std::unique_ptr<CollectiveTask>* running);

  Local At(int64_t order) const;
  int64_t LocalOperations() const { return reduces_ ? 2 * chunks_ : chunks_; }
  bool MayStart(const Local& next) const;
  void StartLocal(const Local& next);
  void StartCross();
  std::vector<Segment> SegmentsOf(int64_t chunk);
  Collective Part(wire::Op op, std::vector<Segment> segments) const;
  std::byte* BufferOf(int64_t chunk) { return queue_.buffers[chunk % 2].data(); }

  TwoLevels& levels_;
  const bool reduces_;
  const bool on_root_host_;  // this rank is on the host of a broadcast's root
  const int64_t chunk_elements_;
  const int64_t chunks_;
  SegmentCursor cursor_;
  std::unique_ptr<CollectiveTask> local_, cross_;
  int64_t order_ = 0;                      // local operations started so far
  int64_t gathered_ = 0;                   // chunks that the leader has received completely from its host
  int64_t cross_begun_ = 0, crossed_ = 0;  // chunks begun and finished between the leaders
};

// The local operation number `order` of an allreduce: reduce 0, reduce 1, broadcast 0, reduce 2, broadcast 1, ..., and
// at the end the last two broadcasts. Of a broadcast: chunk number `order`.
TwoLevel::Local TwoLevel::At(int64_t order) const {
  if (!reduces_) return {false, order};
  if (order == 0) return {true, 0};
  const int64_t pair = (order - 1) / 2;
  if (pair + 1 >= chunks_) return {false, order - chunks_};
  const bool reduces = (order - 1) % 2 == 0;
  return {reduces, reduces ? pair + 1 : pair};
}

bool TwoLevel::Step(int64_t* budget) {
  if (order_ == 0 && cross_begun_ == 0 && reduces_ && levels_.leads()) {
    for (FusionBuffer& buffer : queue_.buffers) {
      if (!Started(buffer.Reserve(chunk_elements_ * element_bytes_))) return true;
    }
  }
  bool moved = StepCross();
  moved |= !Finished() && StepLocal();
  *budget = 0;  // the operations inside and between the hosts have budgets of their own
  const bool all_local = local_ == nullptr && order_ == LocalOperations();
  const bool all_cross = !levels_.leads() || (cross_ == nullptr && crossed_ == chunks_);
  if (!Finished() && all_local && all_cross) {
    Finish(Status::Ok());
    return true;
  }
  return moved;
}

// Tests `running`; true if it has finished now, and ends the whole operation if it failed.
bool TwoLevel::Ended(std::unique_ptr<CollectiveTask>* running) {
  if (!(*running)->Test()) return false;
  const Status status = (*running)->status();
  running->reset();
  Started(status);
  return true;
}

bool TwoLevel::StepCross() {
  bool moved = false;
  if (cross_ != nullptr) {
    if (!Ended(&cross_)) return false;
    if (Finished()) return true;
    ++crossed_;
    moved = true;
  }
  const bool source = reduces_ || on_root_host_;
  if (!levels_.leads() || cross_begun_ == chunks_ || (source && cross_begun_ >= gathered_)) return moved;
  StartCross();
  return true;
}

bool TwoLevel::StepLocal() {
  bool moved = false;
  if (local_ != nullptr) {
    if (!Ended(&local_)) return local_->progressed();
    if (Finished()) return true;
    moved = true;
    const Local ended = At(order_ - 1);
    if (ended.reduces || on_root_host_) gathered_ = ended.chunk + 1;
  }
  if (order_ == LocalOperations()) return moved;
  const Local next = At(order_);
  if (!MayStart(next)) return moved;
  StartLocal(next);
  return true;
}

bool TwoLevel::MayStart(const Local& next) const {
  if (next.reduces || on_root_host_) return true;
  return !levels_.leads() || next.chunk < crossed_;
}

void TwoLevel::StartLocal(const Local& next) {
  ++order_;
  std::vector<Segment> segments = SegmentsOf(next.chunk);
  std::byte* buffer = levels_.leads() && reduces_ ? BufferOf(next.chunk) : nullptr;
  for (Segment& segment : segments) {
    if (next.reduces) segment.output = buffer;
    if (!next.reduces && buffer != nullptr) segment.input = buffer;
    // The broadcast between the leaders has stored the data in the output.
    if (!reduces_ && levels_.leads() && !on_root_host_) segment.input = segment.output;
    if (buffer != nullptr) buffer += segment.count * element_bytes_;
  }
  Collective part = Part(next.reduces ? wire::Op::kReduce : wire::Op::kBroadcast, std::move(segments));
  part.root = on_root_host_ ? levels_.local_of[static_cast<size_t>(collective_.root)] : 0;
  if (next.reduces) ReduceInside(collective_, size(), &part);
  part.names = &levels_.local_names;
  local_ = levels_.local->Start(std::move(part));
}

void TwoLevel::StartCross() {
  const int64_t chunk = cross_begun_++;
  Collective part;
  if (reduces_) {
    const int64_t count = std::min(chunk_elements_, total() - chunk * chunk_elements_);
    part = Part(wire::Op::kAllreduce, {{BufferOf(chunk), BufferOf(chunk), count}});
    ReduceBetween(collective_, size(), &part);
  } else {
    std::vector<Segment> segments = SegmentsOf(chunk);
    // Each leader has or receives the data in its output. Only the root may have no output, but an input.
    for (Segment& segment : segments) {
      if (segment.output == nullptr) segment.output = const_cast<std::byte*>(segment.input);
      segment.input = segment.output;
    }
    part = Part(wire::Op::kBroadcast, std::move(segments));
    part.root = levels_.host(collective_.root);
  }
  part.names = &levels_.cross_names;
  cross_ = levels_.cross->Start(std::move(part));
}

std::vector<Segment> TwoLevel::SegmentsOf(int64_t chunk) {
  std::vector<Segment> segments;
  const int64_t end = std::min((chunk + 1) * chunk_elements_, total());
  for (int64_t at = chunk * chunk_elements_; at < end;) {
    cursor_.Seek(at);
    const int64_t run = cursor_.Run(end - at);
    segments.push_back({cursor_.input(), cursor_.output(), run});
    at += run;
  }
  return segments;
}

Collective TwoLevel::Part(wire::Op op, std::vector<Segment> segments) const {
  Collective part;
  part.op = op;
  part.dtype = collective_.dtype;
  part.sequence = collective_.sequence;
  part.segments = std::move(segments);
  return part;
}

void ScaleResult(const Collective& whole, int ranks, Collective* part) {
  part->postscale = whole.postscale;
  part->divisor_ranks = whole.Divisor(ranks);
}

}  // namespace

void ReduceInside(const Collective& whole, int ranks, Collective* part) {
  const bool scales_first = ScalesFirst(whole);
  const bool averages_later = whole.reduce_op == wire::ReduceOp::kAverage && !scales_first;
  part->reduce_op = averages_later ? wire::ReduceOp::kSum : whole.reduce_op;
  part->prescale = whole.prescale;
  if (scales_first) ScaleResult(whole, ranks, part);
}

void ReduceBetween(const Collective& whole, int ranks, Collective* part) {
  const bool scales_first = ScalesFirst(whole);
  part->reduce_op = scales_first ? wire::ReduceOp::kSum : whole.reduce_op;
  if (!scales_first) ScaleResult(whole, ranks, part);
}

TwoLevels::TwoLevels(MpiResources&& resources, int rank, const BackendOptions& options, const KernelSet* kernel_set)
    : local(MakeShmBackend(resources.local, options, kernel_set)), host_of(std::move(resources.host_of)) {
  BackendOptions between = options;
  between.deterministic = false;
  if (!resources.leaders.empty()) {
    MpiResources leaders;
    leaders.all = std::move(resources.leaders);
    leaders.host_of.resize(static_cast<size_t>(leaders.all.size()));
    std::iota(leaders.host_of.begin(), leaders.host_of.end(), 0);
    cross = MakeMpiBackend(std::move(leaders), between, kernel_set);
  }
  std::vector<int> count;
  for (size_t rank = 0; rank < host_of.size(); ++rank) {
    const auto host = static_cast<size_t>(host_of[rank]);
    if (rank > 0 && host_of[rank] < host_of[rank - 1]) contiguous = false;
    count.resize(std::max(count.size(), host + 1));
    has_multi_rank_host |= count[host] > 0;
    local_of.push_back(count[host]++);
  }
  NameRanks(resources, rank);
}

void TwoLevels::NameRanks(const MpiResources& resources, int own) {
  std::vector<int> here, leaders;
  for (size_t rank = 0; rank < host_of.size(); ++rank) {
    if (local_of[rank] == 0) leaders.push_back(resources.ranks[rank]);
    if (host_of[rank] == host(own)) here.push_back(resources.ranks[rank]);
  }
  local_names = {resources.process_set, std::move(here)};
  cross_names = {resources.process_set, std::move(leaders)};
}

std::unique_ptr<MpiTask> MakeTwoLevel(MpiQueue* queue, Collective collective) {
  return std::unique_ptr<TwoLevel>(new (queue) TwoLevel(queue, std::move(collective)));
}

// ---- allgather

TwoLevelAllgather::TwoLevelAllgather(TwoLevels* levels, int rank, const Collective& collective,
                                     const std::vector<int64_t>& rows, std::byte* result)
    : levels_(*levels),
      rank_(rank),
      input_(collective.segments[0]),
      dtype_(collective.dtype),
      row_bytes_(collective.row_elements * static_cast<int64_t>(DTypeBytes(collective.dtype))),
      row_elements_(collective.row_elements),
      result_(result) {
  int64_t next = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    starts_.push_back(next);
    next += rows[r];
    if (levels_.host_of[r] == levels_.host(rank_)) here_.push_back(static_cast<int>(r));
  }
  starts_.push_back(next);
  StartGather();
}

void TwoLevelAllgather::Start(Backend* backend, Collective collective) {
  collective.names = backend == levels_.local.get() ? &levels_.local_names : &levels_.cross_names;
  collective.dtype = dtype_;
  collective.row_elements = row_elements_;
  running_ = backend->Start(std::move(collective));
}

// Gathers the host's rows straight into their place in the leader's result.
void TwoLevelAllgather::StartGather() {
  Collective gather;
  gather.op = wire::Op::kGather;
  gather.root = 0;
  gather.segments = {{input_.input, nullptr, input_.count}};
  gather.rows = starts_[static_cast<size_t>(rank_) + 1] - starts_[static_cast<size_t>(rank_)];
  output_.allocate = [this](int64_t) -> StatusOr<std::byte*> {
    return result_ + starts_[static_cast<size_t>(here_.front())] * row_bytes_;
  };
  gather.output = &output_;
  Start(levels_.local.get(), std::move(gather));
}

void TwoLevelAllgather::StartExchange() {
  state_ = State::kExchange;
  Collective exchange;
  exchange.op = wire::Op::kAllgather;
  const int64_t first = starts_[static_cast<size_t>(here_.front())];
  exchange.rows = starts_[static_cast<size_t>(here_.back()) + 1] - first;
  exchange.segments = {{result_ + first * row_bytes_, nullptr, exchange.rows * row_elements_}};
  output_.allocate = [this](int64_t) -> StatusOr<std::byte*> { return result_; };
  exchange.output = &output_;
  Start(levels_.cross.get(), std::move(exchange));
}

void TwoLevelAllgather::StartBroadcast() {
  state_ = State::kBroadcast;
  Collective broadcast;
  broadcast.op = wire::Op::kBroadcast;
  broadcast.root = 0;
  broadcast.segments = {{result_, result_, starts_.back() * row_elements_}};
  Start(levels_.local.get(), std::move(broadcast));
}

bool TwoLevelAllgather::Test() {
  while (state_ != State::kDone) {
    if (!running_->Test()) return false;
    status_ = running_->status();
    running_.reset();
    if (!status_.ok() || state_ == State::kBroadcast) {
      state_ = State::kDone;
    } else if (state_ == State::kGather && levels_.leads()) {
      StartExchange();
    } else {
      StartBroadcast();
    }
  }
  return true;
}

}  // namespace horocache::data
