// allgather, gather, alltoall, scatter and barrier over MPI.
//
// The ranks first exchange how many rows they send and whether their arguments are valid; in a scatter, the root
// broadcasts both. Then an allgather mostly uses MPI's own collective. The other operations use messages between pairs
// of ranks, which can have any number of rows at any position.

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "data/backends/mpi/error_agreement.h"
#include "data/backends/mpi/task.h"
#include "data/row_layout.h"
#include "data/zero_fill.h"
#include "net/mpi/orphaned_requests.h"

namespace horocache::data {
namespace {

constexpr int kTag = 1;
// Bytes from which an allgather uses messages, too, if each host has one rank. See Note [Messages between hosts].
constexpr int64_t kLibraryBytes = 64 << 10;
// The most messages of one part that are under way at a time. See Note [Messages between hosts].
constexpr size_t kMessagesUnderWay = 32;

// The information that a rank sends to another rank before the data.
struct RowNotice {
  int64_t rows = 0;
  int64_t flags = 0;
};
constexpr int kRowNoticeWords = sizeof(RowNotice) / sizeof(int64_t);
enum NoticeFlag : int64_t {
  kRefused = 1,  // the sender's arguments are wrong
  kLayout = 2,   // the sender has receive_rows or receive_starts
  kLarge = 4,    // the sender sends a part that may make a result large
};

// A part that is under way to a peer or from it, as messages.
struct Transfer {
  bool sends = false;
  int peer = 0;
  std::byte* data = nullptr;
  int64_t count = 0, started = 0;  // elements
  std::deque<net::MpiRequest> under_way = {};
};

class MpiExchange : public MpiTask {
 public:
  MpiExchange(MpiQueue* queue, Collective collective, int64_t two_levels_from_bytes);
  ~MpiExchange() override;

 private:
  enum class State { kNotify, kNotified, kAgreeing, kMove, kPlacing, kMoving, kLevels, kBarrier };

  bool is_root() const { return collective_.root == rank(); }
  bool scatters() const { return collective_.op == wire::Op::kScatter; }
  bool splits() const { return scatters() || collective_.op == wire::Op::kAlltoall; }
  bool Receives() const { return !joined(rank()) && (collective_.op != wire::Op::kGather || is_root()); }

  bool Step(int64_t* budget) override;
  bool Listen();
  bool KeepMoving(int64_t* budget);
  StatusOr<std::vector<int64_t>> RowsForEach() const;
  void PlanSends();
  Status ExchangeNotices();
  void PlanAfterExchange();
  void ChooseForAllgather(int64_t bytes);
  void Agree(const Status& mine);
  Status MakeResult();
  Status Move();
  Status AllgatherNatively();
  void BeginTransfers();
  bool StepTransfers();
  Status StartMessages(Transfer* transfer);
  bool CopyLocal(int64_t* budget);
  bool FillGaps(int64_t* budget);

  const int64_t two_levels_from_bytes_;
  State state_ = State::kNotify;
  Status refused_;
  std::vector<RowPart> sends_;                              // by destination
  std::vector<RowNotice> sent_notices_, received_notices_;  // by rank
  std::vector<int> counts_, starts_;                        // arguments of MPI calls
  std::vector<int64_t> rows_;                               // rows that this rank receives from each rank
  ReceivePlan plan_;
  std::byte* result_ = nullptr;
  Status own_;  // this rank's own error
  bool native_ = false, two_levels_ = false;
  std::vector<Transfer> transfers_;
  std::unique_ptr<TwoLevelAllgather> levels_;
  MpiErrorAgreement agreement_;
  int64_t copied_ = 0;
  ZeroFiller gaps_;
};

MpiExchange::MpiExchange(MpiQueue* queue, Collective collective, int64_t two_levels_from_bytes)
    : MpiTask(queue, std::move(collective)), two_levels_from_bytes_(two_levels_from_bytes), agreement_(queue) {
  if (collective_.op == wire::Op::kBarrier) {
    state_ = State::kBarrier;
    return;
  }
  PlanSends();
}

MpiExchange::~MpiExchange() {
  if (done()) return;
  for (std::vector<RowNotice>* facts : {&sent_notices_, &received_notices_}) net::KeepUntilExit(std::move(*facts));
  for (std::vector<int>* numbers : {&counts_, &starts_}) net::KeepUntilExit(std::move(*numbers));
}

// Rows that this rank sends to each rank.
StatusOr<std::vector<int64_t>> MpiExchange::RowsForEach() const {
  std::vector<int64_t> rows(static_cast<size_t>(size()), 0);
  if (joined(rank()) || (scatters() && !is_root())) return rows;
  if (!splits()) {
    const StatusOr<int64_t> all = RowsOf(collective_, rank());
    if (!all.ok()) return all.status();
    rows.assign(rows.size(), *all);
    return rows;
  }
  StatusOr<std::vector<int64_t>> given = SplitsOf(collective_, rank(), size());
  if (!given.ok()) return given.status();
  for (int to = 0; to < size(); ++to) {
    if (!joined(to)) rows[static_cast<size_t>(to)] = (*given)[static_cast<size_t>(to)];
  }
  return rows;
}

void MpiExchange::PlanSends() {
  refused_ = CheckReceive(collective_, rank(), size());
  StatusOr<std::vector<int64_t>> rows = RowsForEach();
  StatusOr<std::vector<RowPart>> parts = SendParts(collective_, rank(), size());
  if (refused_.ok()) refused_ = rows.status();
  if (refused_.ok()) refused_ = parts.status();
  sends_.resize(static_cast<size_t>(size()));
  if (parts.ok()) sends_ = std::move(*parts);
  int64_t flags = 0;
  if (!refused_.ok()) flags |= kRefused;
  if (!collective_.receive_rows.empty() || !collective_.receive_starts.empty()) flags |= kLayout;
  for (const RowPart& part : sends_) {
    if (part.count * element_bytes_ >= kConfirmedBytes / size()) flags |= kLarge;
  }
  received_notices_.resize(sends_.size());
  for (size_t to = 0; to < sends_.size(); ++to) sent_notices_.push_back({rows.ok() ? (*rows)[to] : 0, flags});
}

bool MpiExchange::Step(int64_t* budget) {
  switch (state_) {
    case State::kBarrier:
      state_ = State::kMoving;
      Started(mpi().Ibarrier(comm(), NextRequest()));
      return true;
    case State::kNotify:
      state_ = State::kNotified;
      Started(ExchangeNotices());
      return true;
    case State::kNotified:
      if (!RequestsDone()) return false;
      if (!Finished()) PlanAfterExchange();
      return true;
    case State::kAgreeing:
      return Listen();
    case State::kMove:
      state_ = State::kMoving;
      Started(Move());
      return true;
    case State::kPlacing:
      if (CopyLocal(budget)) return true;
      state_ = State::kMoving;
      Started(AllgatherNatively());
      return true;
    case State::kMoving:
      return KeepMoving(budget);
    case State::kLevels:
      if (!levels_->Test()) return false;
      if (Started(levels_->status())) Finish(own_);
      return true;
  }
  return false;
}

bool MpiExchange::Listen() {
  const StatusOr<bool> agreed = agreement_.Test();
  if (!Started(agreed.status())) return true;
  if (!*agreed) return false;
  state_ = State::kMove;
  // If this rank has an error of its own, that error tells its user more.
  if (!agreement_.agreed().ok()) Finish(own_.ok() ? agreement_.agreed() : own_);
  return true;
}

bool MpiExchange::KeepMoving(int64_t* budget) {
  const bool moved = StepTransfers();
  if (Finished() || CopyLocal(budget) || FillGaps(budget)) return true;
  if (!transfers_.empty() || !RequestsDone()) return moved;
  if (!Finished()) Finish(own_);
  return true;
}

Status MpiExchange::ExchangeNotices() {
  const net::MpiType word = mpi().TypeOf(DType::kInt64);
  counts_.assign(static_cast<size_t>(size()), kRowNoticeWords);
  starts_.resize(static_cast<size_t>(size()));
  for (int r = 0; r < size(); ++r) starts_[static_cast<size_t>(r)] = r * kRowNoticeWords;
  if (scatters()) {
    if (is_root()) received_notices_ = sent_notices_;
    return mpi().Ibcast(received_notices_.data(), size() * kRowNoticeWords, word, collective_.root, comm(),
                        NextRequest());
  }
  if (collective_.op == wire::Op::kAlltoall) {
    return mpi().Ialltoallv(sent_notices_.data(), counts_.data(), starts_.data(), received_notices_.data(),
                            counts_.data(), starts_.data(), word, comm(), NextRequest());
  }
  return mpi().Iallgatherv(sent_notices_.data(), kRowNoticeWords, received_notices_.data(), counts_.data(),
                           starts_.data(), word, comm(), NextRequest());
}

// Continues after the exchange of RowNotice. All ranks have the same information, except for the rows of an alltoall,
// and the decisions here depend only on common information, so they are equal on all ranks.
void MpiExchange::PlanAfterExchange() {
  int64_t flags = 0, total = 0;
  rows_.assign(static_cast<size_t>(size()), 0);
  for (int r = 0; r < size(); ++r) {
    const RowNotice& notice = received_notices_[static_cast<size_t>(r)];
    flags |= notice.flags;
    total += notice.rows;
    if (!scatters()) rows_[static_cast<size_t>(r)] = notice.rows;
  }
  if (scatters()) rows_[static_cast<size_t>(collective_.root)] = received_notices_[static_cast<size_t>(rank())].rows;
  if (joined(rank())) rows_.assign(rows_.size(), 0);
  if ((flags & kRefused) != 0) {
    Agree(refused_);
    return;
  }
  const int64_t bytes = total * collective_.row_elements * element_bytes_;
  const bool large = collective_.op == wire::Op::kAlltoall ? (flags & kLarge) != 0 : bytes >= kConfirmedBytes;
  if (collective_.op == wire::Op::kAllgather && (flags & kLayout) == 0) ChooseForAllgather(bytes);
  own_ = MakeResult();
  if (large || (flags & kLayout) != 0) {
    Agree(own_);
  } else {
    state_ = State::kMove;
  }
}

// Chooses MPI's own collective, two levels or messages. Called only if no rank has receive_rows or receive_starts.
// Joined ranks and results too large for one MPI call require messages.
void MpiExchange::ChooseForAllgather(int64_t bytes) {
  if (!collective_.joined.empty() || bytes / element_bytes_ > queue_.max_count) return;
  two_levels_ = bytes >= two_levels_from_bytes_;
  native_ = !two_levels_ && (bytes < kLibraryBytes || !queue_.OneRankPerHost());
}

void MpiExchange::Agree(const Status& mine) {
  own_ = mine;
  if (Started(agreement_.Begin(mine))) state_ = State::kAgreeing;
}

Status MpiExchange::MakeResult() {
  if (!Receives()) return Status::Ok();
  StatusOr<ReceivePlan> plan = PlanReceive(collective_, rows_, rank(), size());
  if (!plan.ok()) return plan.status();
  plan_ = std::move(*plan);
  if (collective_.output == nullptr) {
    result_ = collective_.segments.empty() ? nullptr : collective_.segments[0].output;
  } else {
    collective_.output->rows = rows_;
    StatusOr<std::byte*> memory = collective_.output->allocate(plan_.elements * element_bytes_);
    if (!memory.ok()) return memory.status();
    result_ = *memory;
  }
  gaps_ = ZeroFiller(plan_, collective_.ZeroedIn(result_), element_bytes_);
  return Status::Ok();
}

Status MpiExchange::Move() {
  if (!own_.ok()) {
    // The result was too small for the ranks to confirm their memory. The others go on, so the sink takes the data.
    HC_RETURN_IF_ERROR(queue_.sink.Reserve(kConfirmedBytes));
    result_ = queue_.sink.data();
    gaps_ = ZeroFiller();
  }
  if (two_levels_) {
    levels_ = std::make_unique<TwoLevelAllgather>(queue_.levels.get(), rank(), collective_, rows_, result_);
    state_ = State::kLevels;
    return Status::Ok();
  }
  if (native_) {
    state_ = State::kPlacing;
    return Status::Ok();
  }
  BeginTransfers();
  return Status::Ok();
}

void MpiExchange::BeginTransfers() {
  for (int i = 1; i < size() && !plan_.parts.empty(); ++i) {
    const int peer = (rank() + size() - i) % size();
    const RowPart& part = plan_.parts[static_cast<size_t>(peer)];
    transfers_.push_back({false, peer, result_ + part.first * element_bytes_, part.count});
  }
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank() + i) % size();  // each rank starts with another peer
    const RowPart& part = sends_[static_cast<size_t>(peer)];
    if (part.count == 0) continue;
    // MPI only reads the data that it sends.
    auto* const data = const_cast<std::byte*>(collective_.segments[0].input) + part.first * element_bytes_;
    transfers_.push_back({true, peer, data, part.count});
  }
}

// Advances the transfers and removes the complete ones; true if it made progress.
bool MpiExchange::StepTransfers() {
  bool moved = false;
  for (Transfer& transfer : transfers_) {
    std::deque<net::MpiRequest>& under_way = transfer.under_way;
    for (; !under_way.empty() && RequestDone(&under_way.front()); moved = true) {
      if (Finished()) return true;
      under_way.pop_front();
    }
    if (!Started(StartMessages(&transfer))) return true;
  }
  std::erase_if(transfers_, [](const Transfer& transfer) { return transfer.under_way.empty(); });
  return moved;
}

Status MpiExchange::StartMessages(Transfer* transfer) {
  const int64_t most = queue_.MessageElements(transfer->peer, element_bytes_);
  while (transfer->started < transfer->count && transfer->under_way.size() < kMessagesUnderWay) {
    const int count = static_cast<int>(std::min(most, transfer->count - transfer->started));
    std::byte* const at = transfer->data + transfer->started * element_bytes_;
    net::MpiRequest& request = transfer->under_way.emplace_back(mpi().null_request());
    HC_RETURN_IF_ERROR(transfer->sends ? mpi().Isend(at, count, type(), transfer->peer, kTag, comm(), &request)
                                       : mpi().Irecv(at, count, type(), transfer->peer, kTag, comm(), &request));
    transfer->started += count;
  }
  return Status::Ok();
}

// In place on all ranks: MPI requires this on all ranks or on none, and in the allgather between leaders
// (TwoLevelAllgather) each host's rows are already in place.
Status MpiExchange::AllgatherNatively() {
  for (size_t r = 0; r < rows_.size(); ++r) {
    counts_[r] = static_cast<int>(plan_.parts[r].count);
    starts_[r] = static_cast<int>(plan_.parts[r].first);
  }
  return mpi().Iallgatherv(mpi().in_place(), 0, result_, counts_.data(), starts_.data(), type(), comm(), NextRequest());
}

// Copies this rank's part for itself to the result.
bool MpiExchange::CopyLocal(int64_t* budget) {
  if (plan_.parts.empty() || (!own_.ok() && !native_)) return false;
  const RowPart& to = plan_.parts[static_cast<size_t>(rank())];
  if (copied_ >= to.count) return false;
  const RowPart& from = sends_[static_cast<size_t>(rank())];
  const int64_t run = std::min(to.count - copied_, PieceElements(*budget));
  std::byte* const target = result_ + (to.first + copied_) * element_bytes_;
  const std::byte* const source = collective_.segments[0].input + (from.first + copied_) * element_bytes_;
  if (target != source) MpiTask::Move(target, source, run * element_bytes_, budget);
  copied_ += run;
  return true;
}

bool MpiExchange::FillGaps(int64_t* budget) {
  if (gaps_.done()) return false;
  *budget -= gaps_.Fill(PieceElements(*budget));
  return true;
}

}  // namespace

std::unique_ptr<MpiTask> MakeMpiExchange(MpiQueue* queue, Collective collective, int64_t two_levels_from_bytes) {
  return std::unique_ptr<MpiExchange>(new (queue) MpiExchange(queue, std::move(collective), two_levels_from_bytes));
}

}  // namespace horocache::data
