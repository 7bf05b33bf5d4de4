// allreduce, reduce and reducescatter over MPI with the fold of the shm backend: tile by tile, the ranks send each
// other the slices of their inputs, each folds its own slice in rank order, and, but for reducescatter, the results are
// gathered. Same bits as in shared memory.

#include <algorithm>
#include <memory>
#include <utility>

#include "control/hashing.h"
#include "data/backends/mpi/mpi_operation.h"
#include "data/backends/mpi/mpi_verdict.h"
#include "data/backends/segment_cursor.h"
#include "data/rows.h"

namespace horocache::data {
namespace {

constexpr int kTag = 2;
constexpr int64_t kTileBytes = 4 << 20;
constexpr int64_t kLine = 64;

struct Range {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

// What both have in common: slices out, slices in, fold. Subclasses say where slices come from and where results go.
class MpiSlices : public MpiOperation {
 protected:
  MpiSlices(MpiQueue* queue, Collective collective) : MpiOperation(queue, std::move(collective)) {
    for (int r = 0; r < size(); ++r) {
      if (!joined(r)) contributors_.push_back(r);
    }
    inputs_.resize(contributors_.size());
  }

  // Element `at` of the slice of `owner` in this rank's input.
  virtual const std::byte* Input(int owner, int64_t at) const = 0;
  virtual int64_t SliceCount(int owner) const = 0;  // elements of this tile's slice
  virtual std::byte* Output(int64_t at) = 0;        // of this rank's slice

  // Starts to send and to receive a tile's slices, each of at most `most` elements.
  Status StartSlices(int64_t most);
  // A part of the fold of this rank's slice, from folded_ on; false when there is nothing left.
  bool FoldSome(int64_t* budget);

  std::vector<int> contributors_;
  int64_t folded_ = 0;

 private:
  std::byte* Received(int from) const { return queue_.scratch.data() + from * slice_bytes_; }

  std::vector<const std::byte*> inputs_;
  int64_t slice_bytes_ = 0;
};

Status MpiSlices::StartSlices(int64_t most) {
  folded_ = 0;
  slice_bytes_ = (most * element_bytes_ + kLine - 1) / kLine * kLine;
  HC_RETURN_IF_ERROR(queue_.scratch.Reserve(slice_bytes_ * size()));
  const int own = static_cast<int>(SliceCount(rank()));
  for (const int from : contributors_) {
    if (from == rank() || own == 0) continue;
    HC_RETURN_IF_ERROR(mpi().Irecv(Received(from), own, type(), from, kTag, comm(), NextRequest()));
  }
  for (int i = 1; i < size() && !joined(rank()); ++i) {
    const int to = (rank() + i) % size();
    const int count = static_cast<int>(SliceCount(to));
    if (count > 0) HC_RETURN_IF_ERROR(mpi().Isend(Input(to, 0), count, type(), to, kTag, comm(), NextRequest()));
  }
  return Status::Ok();
}

bool MpiSlices::FoldSome(int64_t* budget) {
  const int64_t count = SliceCount(rank());
  if (folded_ == count) return false;
  const int64_t run = std::min(count - folded_, PieceElements(*budget));
  for (size_t i = 0; i < contributors_.size(); ++i) {
    const int r = contributors_[i];
    inputs_[i] = r == rank() ? Input(r, folded_) : Received(r) + folded_ * element_bytes_;
  }
  FoldCall call;
  call.inputs = inputs_.data();
  call.num_inputs = static_cast<int>(inputs_.size());
  call.count = run;
  call.output = Output(folded_);
  call.scaling = scaling_;
  FoldNow(call, budget);
  folded_ += run;
  return true;
}

// reducescatter. Slices are sent from where they are; tile t has the t-th piece of every rank's part.
class MpiReducescatter final : public MpiSlices {
 public:
  MpiReducescatter(MpiQueue* queue, Collective collective)
      : MpiSlices(queue, std::move(collective)),
        capacity_(std::max<int64_t>(1, kTileBytes / size() / element_bytes_)),
        verdict_(queue) {
    StatusOr<std::vector<int64_t>> rows = SplitsOf(collective_, rank(), size());
    refused_ = rows.status();
    if (rows.ok()) Plan(std::move(*rows));
  }

 private:
  enum class State { kCompare, kCompared, kShow, kAgreeing, kSlices, kFold };

  bool Step(int64_t* budget) override;
  void Plan(std::vector<int64_t> rows);
  bool Listen();
  Status Compare();
  void OnCompared();
  Status Show();
  Status Difference() const;
  void Agree(const Status& mine, State next);
  void OnAgreed();
  Status MakeResult();
  bool NextTile();

  int64_t SliceCount(int owner) const override {
    return std::clamp<int64_t>(counts_[static_cast<size_t>(owner)] - begin_, 0, capacity_);
  }
  const std::byte* Input(int owner, int64_t at) const override {
    const std::byte* const base = collective_.segments[0].input;
    return base + (firsts_[static_cast<size_t>(owner)] + begin_ + at) * element_bytes_;
  }
  std::byte* Output(int64_t at) override { return result_ + (begin_ + at) * element_bytes_; }

  const int64_t capacity_;  // elements of a slice
  Status refused_;
  std::vector<int64_t> rows_, firsts_, counts_;
  int64_t longest_ = 0;
  int64_t begin_ = 0;  // of this tile's slices in their parts
  std::byte* result_ = nullptr;
  State state_ = State::kCompare;
  bool allocated_ = false;
  Status own_;
  MpiVerdict verdict_;
  // A hash of the rows and its negative: their maxima over the ranks are negatives of each other iff all are equal.
  // And whether somebody refuses.
  int64_t compared_[3] = {};
  std::vector<int64_t> shown_;  // rank 0's rows
};

void MpiReducescatter::Plan(std::vector<int64_t> rows) {
  rows_ = std::move(rows);
  int64_t first = 0;
  for (const int64_t r : rows_) {
    firsts_.push_back(first);
    counts_.push_back(r * collective_.row_elements);
    first += counts_.back();
    longest_ = std::max(longest_, counts_.back());
  }
}

bool MpiReducescatter::Step(int64_t* budget) {
  switch (state_) {
    case State::kCompare:
      if (Started(Compare())) state_ = State::kCompared;
      return true;
    case State::kCompared:
      if (!RequestsDone()) return false;
      if (!finished()) OnCompared();
      return true;
    case State::kShow:
      if (!RequestsDone()) return false;
      if (!finished()) Agree(Difference(), State::kAgreeing);
      return true;
    case State::kAgreeing:
      return Listen();
    case State::kSlices:
      if (!RequestsDone()) return false;
      state_ = State::kFold;
      return true;
    case State::kFold:
      if (result_ != nullptr && FoldSome(budget)) return true;
      begin_ += capacity_;
      return NextTile();
  }
  return false;
}

bool MpiReducescatter::Listen() {
  const StatusOr<bool> agreed = verdict_.Test();
  if (!Started(agreed.status())) return true;
  if (*agreed) OnAgreed();
  return *agreed;
}

Status MpiReducescatter::Compare() {
  control::Hasher hash;
  for (const int64_t rows : rows_) hash.Add(static_cast<uint64_t>(rows));
  compared_[0] = static_cast<int64_t>(hash.value() >> 1);
  compared_[1] = -compared_[0];
  compared_[2] = refused_.ok() ? 0 : 1;
  return mpi().Iallreduce(mpi().in_place(), compared_, 3, mpi().TypeOf(DType::kInt64),
                          mpi().OpOf(net::MpiReduction::kMax), comm(), NextRequest());
}

void MpiReducescatter::OnCompared() {
  constexpr int64_t kConfirmedBytes = 1 << 20;
  if (compared_[2] != 0) return Agree(refused_, State::kAgreeing);
  if (compared_[0] != -compared_[1]) {
    if (Started(Show())) state_ = State::kShow;
    return;
  }
  own_ = MakeResult();
  allocated_ = true;
  if (longest_ * element_bytes_ >= kConfirmedBytes) return Agree(own_, State::kAgreeing);
  NextTile();
}

Status MpiReducescatter::Show() {
  shown_ = rows_;
  return mpi().Ibcast(shown_.data(), size(), mpi().TypeOf(DType::kInt64), 0, comm(), NextRequest());
}

Status MpiReducescatter::Difference() const {
  const auto found = std::ranges::mismatch(shown_, rows_);
  if (found.in1 == shown_.end()) return Status::Ok();
  return {StatusCode::kMismatch, "reducescatter: " + collective_.Rank(0) + " gives " + std::to_string(*found.in1) +
                                     " rows to " + collective_.Rank(found.in1 - shown_.begin()) + ", " +
                                     collective_.Rank(rank()) + " gives " + std::to_string(*found.in2) +
                                     ". Give the same number of rows for each rank on all ranks."};
}

void MpiReducescatter::Agree(const Status& mine, State next) {
  own_ = mine;
  if (Started(verdict_.Begin(mine))) state_ = next;
}

void MpiReducescatter::OnAgreed() {
  if (!verdict_.verdict().ok()) {
    Finish(own_.ok() ? verdict_.verdict() : own_);
  } else if (allocated_) {
    NextTile();
  } else {
    Started({StatusCode::kInternal, "the ranks' rows differ by their hashes alone"});
  }
}

Status MpiReducescatter::MakeResult() {
  if (joined(rank())) return Status::Ok();
  if (collective_.output == nullptr) {
    result_ = collective_.segments[0].output;
    return Status::Ok();
  }
  collective_.output->rows = rows_;
  StatusOr<std::byte*> memory = collective_.output->allocate(counts_[static_cast<size_t>(rank())] * element_bytes_);
  if (memory.ok()) result_ = *memory;
  return memory.status();
}

// Starts the next tile, or ends. Without memory of its own this rank still sends what the others need.
bool MpiReducescatter::NextTile() {
  if (begin_ >= longest_) {
    Finish(own_);
  } else if (Started(StartSlices(capacity_))) {
    state_ = State::kSlices;
  }
  return true;
}

}  // namespace

std::unique_ptr<MpiOperation> MakeMpiReducescatter(MpiQueue* queue, Collective collective) {
  return std::make_unique<MpiReducescatter>(queue, std::move(collective));
}

}  // namespace horocache::data
