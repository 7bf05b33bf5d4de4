// reducescatter over MPI with the fold of the shm backend, tile by tile: tile t has the t-th piece of every rank's
// part. Ranks send straight from the caller's memory. The bits are those of shared memory.
//
// The ranks first compare their rows for each rank by a hash. If the hashes differ, the lowest rank with data
// broadcasts its rows, so that the error names two ranks and both numbers.

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "control/hashing.h"
#include "data/backends/mpi/error_agreement.h"
#include "data/backends/mpi/slices.h"
#include "data/row_layout.h"

namespace horocache::data {
namespace {

class MpiReducescatter final : public MpiSlices {
 public:
  MpiReducescatter(MpiQueue* queue, Collective collective)
      : MpiSlices(queue, std::move(collective)),
        capacity_(std::max<int64_t>(1, kTileBytes / size() / element_bytes_)),
        agreement_(queue) {
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
  void Agree(const Status& mine);
  void OnAgreed();
  Status MakeResult();
  bool NextTile();

  // The slice that `owner` folds; empty for joined ranks, and on them.
  Slice SliceOf(int owner) const {
    if (joined(owner) || joined(rank())) return {};
    const auto at = static_cast<size_t>(owner);
    return {collective_.segments[0].input + (parts_[at].first + begin_) * element_bytes_,
            std::clamp<int64_t>(parts_[at].count - begin_, 0, capacity_)};
  }

  const int64_t capacity_;  // the most elements of a slice
  Status refused_;
  std::vector<int64_t> rows_;
  std::vector<RowPart> parts_;  // by owner
  int64_t begin_ = 0;           // first element of this tile's slices in their parts
  std::byte* result_ = nullptr;
  Exchange exchange_;
  State state_ = State::kCompare;
  bool allocated_ = false;
  Status own_;
  MpiErrorAgreement agreement_;
  // Reduced to its maxima over the ranks: a hash of the rows and its negative (the maxima are negatives of each other
  // if and only if all hashes are equal), 1 if a rank's arguments are wrong, and the elements of the longest part. A
  // joined rank does not know the rows and contributes the initial values.
  struct Compared {
    int64_t hash = std::numeric_limits<int64_t>::min();
    int64_t negative = std::numeric_limits<int64_t>::min();
    int64_t refused = 0;
    int64_t longest = 0;
  };
  Compared compared_;
  std::vector<int64_t> shown_;  // the rows of the lowest rank with data
};

void MpiReducescatter::Plan(std::vector<int64_t> rows) {
  rows_ = std::move(rows);
  parts_ = PartsOf(rows_, collective_.row_elements);
}

bool MpiReducescatter::Step(int64_t* budget) {
  switch (state_) {
    case State::kCompare:
      if (Started(Compare())) state_ = State::kCompared;
      return true;
    case State::kCompared:
      if (!RequestsDone()) return false;
      if (!Finished()) OnCompared();
      return true;
    case State::kShow:
      if (!RequestsDone()) return false;
      if (!Finished()) Agree(Difference());
      return true;
    case State::kAgreeing:
      return Listen();
    case State::kSlices:
      if (!Complete(&exchange_)) return false;
      state_ = State::kFold;
      return true;
    case State::kFold:
      if (result_ != nullptr && FoldSome(&exchange_, SliceOf(rank()), result_ + begin_ * element_bytes_, budget)) {
        return true;
      }
      begin_ += capacity_;
      return NextTile();
  }
  return false;
}

bool MpiReducescatter::Listen() {
  const StatusOr<bool> agreed = agreement_.Test();
  if (!Started(agreed.status())) return true;
  if (*agreed) OnAgreed();
  return *agreed;
}

Status MpiReducescatter::Compare() {
  if (!joined(rank())) {
    control::Hasher hash;
    for (const int64_t rows : rows_) hash.Add(static_cast<uint64_t>(rows));
    const auto half = static_cast<int64_t>(hash.value() >> 1);
    compared_ = {half, -half, refused_.ok() ? 0 : 1, LongestOf(parts_)};
  }
  constexpr int kWords = sizeof(Compared) / sizeof(int64_t);
  return mpi().Iallreduce(mpi().in_place(), &compared_, kWords, mpi().TypeOf(DType::kInt64),
                          mpi().OpOf(net::MpiReduction::kMax), comm(), NextRequest());
}

void MpiReducescatter::OnCompared() {
  if (compared_.refused != 0) return Agree(refused_);
  if (compared_.hash != -compared_.negative) {
    if (Started(Show())) state_ = State::kShow;
    return;
  }
  own_ = MakeResult();
  allocated_ = true;
  if (compared_.longest * element_bytes_ >= kConfirmedBytes) return Agree(own_);
  NextTile();
}

Status MpiReducescatter::Show() {
  shown_ = rows_;
  shown_.resize(static_cast<size_t>(size()));
  return mpi().Ibcast(shown_.data(), size(), mpi().TypeOf(DType::kInt64), contributors().front(), comm(),
                      NextRequest());
}

Status MpiReducescatter::Difference() const {
  if (joined(rank())) return Status::Ok();
  return CompareRows(collective_, contributors().front(), shown_, rank(), rows_);
}

void MpiReducescatter::Agree(const Status& mine) {
  own_ = mine;
  if (Started(agreement_.Begin(mine))) state_ = State::kAgreeing;
}

void MpiReducescatter::OnAgreed() {
  if (!agreement_.agreed().ok()) {
    Finish(own_.ok() ? agreement_.agreed() : own_);
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
  StatusOr<std::byte*> memory =
      collective_.output->allocate(parts_[static_cast<size_t>(rank())].count * element_bytes_);
  if (memory.ok()) result_ = *memory;
  return memory.status();
}

// Starts the next tile, or ends the operation. A rank without memory for its result still sends the slices of the other
// ranks.
bool MpiReducescatter::NextTile() {
  if (begin_ >= compared_.longest) {
    Finish(own_);
    return true;
  }
  const auto slice_of = [this](int owner) { return SliceOf(owner); };
  if (Started(Start(&exchange_, &queue_.received[0], capacity_, slice_of))) state_ = State::kSlices;
  return true;
}

}  // namespace

std::unique_ptr<MpiTask> MakeMpiReducescatter(MpiQueue* queue, Collective collective) {
  return std::unique_ptr<MpiReducescatter>(new (queue) MpiReducescatter(queue, std::move(collective)));
}

}  // namespace horocache::data
