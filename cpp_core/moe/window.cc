#include "moe/window.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/futex.h"
#include "base/memory.h"
#include "moe/window_layout.h"

namespace horocache::moe {
namespace {

using Act = Exchange::Act;

// The longest sleep between two calls of `check`.
constexpr int64_t kLongestSleepNs = 100 * kNsPerMs;

}  // namespace

Window::Places Window::Place(const Geometry& geometry, int rank) {
  const auto ranks = static_cast<size_t>(geometry.ranks());
  const auto hosts = static_cast<size_t>(std::count(geometry.hosts.begin(), geometry.hosts.end(), true));
  const size_t batches = geometry.hosts[static_cast<size_t>(rank)] ? ranks * geometry.depth : 0;
  const size_t results = hosts * geometry.depth;
  Places places;
  places.closed = RoundUp(sizeof(Head), kCacheLine);
  places.released = RoundUp(places.closed + ranks * sizeof(uint64_t), kCacheLine);
  places.wants_room = RoundUp(places.released + ranks * sizeof(uint64_t), kCacheLine);
  places.failures = RoundUp(places.wants_room + ranks * sizeof(uint32_t), kCacheLine);
  places.batch_words = places.failures + ranks * sizeof(Failure);
  places.result_words = places.batch_words + batches * sizeof(CellWord);
  places.batches = RoundUp(places.result_words + results * sizeof(CellWord), kPage);
  places.results = RoundUp(places.batches + batches * CellBytes(geometry.batch_bytes), kPage);
  places.total = RoundUp(places.results + results * CellBytes(geometry.result_bytes), kPage);
  return places;
}

int64_t BlockBytes(const Geometry& geometry, int rank) {
  return static_cast<int64_t>(Window::Place(geometry, rank).total);
}

Window::Window(int rank, Geometry geometry, Blocks blocks, std::vector<std::string> names, int64_t spin_ns,
               std::shared_ptr<ExchangeCounters> counters)
    : geometry_(std::move(geometry)),
      blocks_(std::move(blocks)),
      names_(std::move(names)),
      spin_ns_(spin_ns),
      counters_(std::move(counters)),
      lost_(geometry_.hosts.size()),
      exchange_(rank, geometry_.hosts, geometry_.depth),
      plan_rows_(geometry_.hosts.size(), 0),
      rows_(geometry_.hosts.size(), -1),
      waited_ns_(geometry_.hosts.size(), 0) {
  size_t hosts = 0;
  for (int i = 0; i < geometry_.ranks(); ++i) {
    places_.push_back(Place(geometry_, i));
    host_number_.push_back(hosts);
    hosts += geometry_.hosts[static_cast<size_t>(i)];
    bells_.push_back(IsRemote(i) ? net::Doorbell() : BellOf(blocks_.base[static_cast<size_t>(i)]));
  }
}

Window::~Window() { Close(); }

Window::Head& Window::HeadOf(int rank) const {
  return *std::launder(reinterpret_cast<Head*>(blocks_.base[static_cast<size_t>(rank)]));
}

net::Doorbell Window::BellOf(std::byte* block) {
  return net::Doorbell(&std::launder(reinterpret_cast<Head*>(block))->bell);
}

// The rounds that a rank has released, as far as this rank knows.
uint32_t Window::ReleasedBy(int rank) const {
  if (!IsRemote(rank)) return HeadOf(rank).released.load(std::memory_order_seq_cst);
  const auto* const released = Part<std::atomic<uint64_t>>(exchange_.rank(), &Places::released);
  return static_cast<uint32_t>(released[rank].load(std::memory_order_seq_cst));
}

// Wakes a rank that may sleep; the carrier wakes remote ranks.
void Window::Ring(int rank) {
  if (!IsRemote(rank)) bells_[static_cast<size_t>(rank)].Ring();
}

// The memory of a part of a rank's block.
template <typename T>
T* Window::Part(int owner, size_t Places::* part) const {
  return reinterpret_cast<T*>(blocks_.base[static_cast<size_t>(owner)] + places_[static_cast<size_t>(owner)].*part);
}

std::atomic<uint64_t>& Window::Closed(int owner, int writer) const {
  return Part<std::atomic<uint64_t>>(owner, &Places::closed)[writer];
}

std::atomic<uint32_t>& Window::WantsRoom(int owner, int writer) const {
  return Part<std::atomic<uint32_t>>(owner, &Places::wants_room)[writer];
}

// The number of the cell that the current round uses, of those that `writer` fills in a block.
size_t Window::BatchNumber(int writer) const {
  return static_cast<size_t>(writer) * geometry_.depth + exchange_.round() % geometry_.depth;
}

size_t Window::ResultNumber(int writer) const {
  return host_number_[static_cast<size_t>(writer)] * geometry_.depth + exchange_.round() % geometry_.depth;
}

size_t Window::BatchWordAt(int owner, int writer) const {
  return places_[static_cast<size_t>(owner)].batch_words + BatchNumber(writer) * sizeof(CellWord);
}

size_t Window::ResultWordAt(int owner, int writer) const {
  return places_[static_cast<size_t>(owner)].result_words + ResultNumber(writer) * sizeof(CellWord);
}

size_t Window::BatchAt(int owner, int writer) const {
  return places_[static_cast<size_t>(owner)].batches + BatchNumber(writer) * CellBytes(geometry_.batch_bytes);
}

size_t Window::ResultAt(int owner, int writer) const {
  return places_[static_cast<size_t>(owner)].results + ResultNumber(writer) * CellBytes(geometry_.result_bytes);
}

Window::CellWord& Window::BatchWord(int owner, int writer) const {
  return *reinterpret_cast<CellWord*>(blocks_.base[static_cast<size_t>(owner)] + BatchWordAt(owner, writer));
}

Window::CellWord& Window::ResultWord(int owner, int writer) const {
  return *reinterpret_cast<CellWord*>(blocks_.base[static_cast<size_t>(owner)] + ResultWordAt(owner, writer));
}

std::span<std::byte> Window::Batch(int owner, int writer, int32_t rows) const {
  return {blocks_.base[static_cast<size_t>(owner)] + BatchAt(owner, writer), static_cast<size_t>(rows * row_bytes_[0])};
}

std::span<std::byte> Window::Result(int owner, int writer, int32_t rows) const {
  return {blocks_.base[static_cast<size_t>(owner)] + ResultAt(owner, writer),
          static_cast<size_t>(rows * row_bytes_[1])};
}

Status Window::Enter(const Plan& plan, uint32_t tag, std::array<int64_t, 2> row_bytes, const Check& check) {
  if (exchange_.inside()) {
    return InvalidArgumentError(
        Name() +
        ": an exchange begins while another one of the same window is under way; a layer's calls "
        "come one after the other, in the same order on all ranks");
  }
  if (closed_) return {StatusCode::kShutDown, "this rank has closed the window"};
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const int64_t rows = plan.rows[i];
    if (rows > 0 && !geometry_.hosts[i])
      return InvalidArgumentError("tokens for " + names_[i] + ", which has no expert");
    if (rows < 0) return InvalidArgumentError("a negative number of tokens for " + names_[i]);
  }
  HC_RETURN_IF_ERROR(AwaitEndOfFailedRound(plan.limit_ns, check));
  plan_rows_ = plan.rows;
  tag_ = tag;
  row_bytes_ = row_bytes;
  std::fill(rows_.begin(), rows_.end(), -1);
  std::fill(waited_ns_.begin(), waited_ns_.end(), 0);
  step_ = {};
  exchange_.Enter(plan, NowNs());
  entered_.store(exchange_.round(), std::memory_order_relaxed);
  Count(&ExchangeCounters::rounds);
  return Status::Ok();
}

StatusOr<Window::Step> Window::Next(const Check& check) {
  Publish();
  idle_since_ns_ = 0;
  for (;;) {
    const uint32_t rung = bells_[static_cast<size_t>(exchange_.rank())].Rung();  // before the look for news
    Status status = Poll();
    if (status.ok()) {
      const Exchange::Step step = exchange_.Next(NowNs());
      if (step.act != Act::kWait) return Begin(step);
      if (AskForRoom()) continue;
      status = Wait(rung, step.until_ns, check);
    }
    if (!status.ok()) {
      Fail(status);
      return status;
    }
  }
}

// Waits until all ranks have left the round that failed on this one, for at most `limit_ns`.
Status Window::AwaitEndOfFailedRound(int64_t limit_ns, const Check& check) {
  const int64_t now_ns = NowNs();
  const int64_t until_ns = limit_ns > kForever - now_ns ? kForever : now_ns + limit_ns;
  while (failed_round_ != 0) {
    const uint32_t rung = bells_[static_cast<size_t>(exchange_.rank())].Rung();
    int late = -1;
    for (int peer = 0; peer < exchange_.ranks(); ++peer) {
      const bool gone = lost_[static_cast<size_t>(peer)].load(std::memory_order_acquire) || HasClosed(peer);
      const uint32_t released = ReleasedBy(peer);
      if (!gone && released < failed_round_ && peer != exchange_.rank()) late = peer;
    }
    if (late < 0) {
      failed_round_ = 0;
    } else if (NowNs() >= until_ns) {
      return {StatusCode::kStall, names_[static_cast<size_t>(late)] + " has not come to round " +
                                      std::to_string(failed_round_) + " of the window, which failed on " + Name() +
                                      "; all ranks must call the layer"};
    } else {
      HC_RETURN_IF_ERROR(Wait(rung, until_ns, check));
      if (closed_) return {StatusCode::kShutDown, Name() + " has closed the window during an exchange"};
    }
  }
  return Status::Ok();
}

// Publishes what the caller has written in the step before.
void Window::Publish() {
  const int own = exchange_.rank();
  if (step_.act == Act::kSend) {
    if (IsRemote(step_.peer)) {
      PostBatch(step_.peer);
    } else {
      WriteBatchWord(&BatchWord(step_.peer, own));
    }
    if (step_.rows > 0) Count(&ExchangeCounters::batches_sent);
    Count(&ExchangeCounters::bytes_written, step_.batch.size());
  } else if (step_.act == Act::kServe) {
    if (IsRemote(step_.peer)) {
      PostResult(step_.peer);
    } else {
      ResultWord(step_.peer, own).word.store(WordOf(exchange_.round(), step_.rows), std::memory_order_release);
    }
    Count(&ExchangeCounters::batches_served);
    Count(&ExchangeCounters::bytes_written, step_.result.size());
  } else {
    return;
  }
  if (step_.peer != own) Ring(step_.peer);
  step_ = {};
}

void Window::WriteBatchWord(CellWord* word) const {
  word->tag.store(tag_, std::memory_order_relaxed);
  for (size_t i = 0; i < row_bytes_.size(); ++i) word->row_bytes[i].store(row_bytes_[i], std::memory_order_relaxed);
  word->word.store(WordOf(exchange_.round(), step_.rows), std::memory_order_release);
}

StatusOr<Window::Step> Window::Begin(const Exchange::Step& step) {
  step_ = {};
  step_.act = step.act;
  step_.peer = step.peer;
  Status status;
  switch (step.act) {
    case Act::kSend:
      status = BeginSend(step.peer);
      break;
    case Act::kServe:
      status = BeginServe(step.peer);
      break;
    case Act::kTake:
      BeginTake(step.peer);
      break;
    case Act::kLeave:
      Release();
      break;
    case Act::kWait:
      break;
  }
  if (status.ok()) return step_;
  Fail(status);
  return status;
}

Status Window::BeginSend(int host) {
  const int own = exchange_.rank();
  step_.rows = plan_rows_[static_cast<size_t>(host)];
  if (host == own) rows_[static_cast<size_t>(host)] = step_.rows;
  if (IsRemote(host)) {
    HC_RETURN_IF_ERROR(CheckFits(host));
    step_.batch = Stage(step_.rows * row_bytes_[0]);
    return Status::Ok();
  }
  std::atomic<int64_t>& offset = BatchWord(host, own).spill;
  if (Fits(step_.rows)) {
    step_.batch = Batch(host, own, step_.rows);
    return Status::Ok();
  }
  const StatusOr<Spill*> spill = SpillFor(host, step_.rows);
  if (!spill.ok()) return spill.status();
  std::byte* const at = (*spill)->memory.get();
  if (host != own) offset.store(at - blocks_.regions[static_cast<size_t>(own)].data(), std::memory_order_relaxed);
  step_.batch = SpillParts(at, step_.rows)[0];
  return Status::Ok();
}

Status Window::BeginServe(int peer) {
  const int own = exchange_.rank();
  step_.rows = rows_[static_cast<size_t>(peer)];
  if (IsRemote(peer)) {
    HC_RETURN_IF_ERROR(CheckFits(peer));
    step_.batch = Batch(own, peer, step_.rows);
    step_.result = Stage(step_.rows * row_bytes_[1]);
    return Status::Ok();
  }
  if (Fits(step_.rows)) {
    step_.batch = Batch(own, peer, step_.rows);
    step_.result = Result(peer, own, step_.rows);
    return Status::Ok();
  }
  std::byte* at = nullptr;
  if (peer == own) {
    at = FindSpill(own)->memory.get();
  } else {
    HC_RETURN_IF_ERROR(Locate(peer, BatchWord(own, peer).spill.load(std::memory_order_relaxed), &at));
  }
  const auto [batch, result] = SpillParts(at, step_.rows);
  step_.batch = batch;
  step_.result = result;
  return Status::Ok();
}

void Window::BeginTake(int host) {
  step_.rows = plan_rows_[static_cast<size_t>(host)];
  const Spill* const spill = FindSpill(host);
  step_.result =
      spill != nullptr ? SpillParts(spill->memory.get(), step_.rows)[1] : Result(exchange_.rank(), host, step_.rows);
}

// Reports to the exchange what the other ranks have written. An error: a rank failed, or is in another call.
Status Window::Poll() {
  if (closed_) return {StatusCode::kShutDown, Name() + " has closed the window during an exchange"};
  if (blocks_.carrier != nullptr) HC_RETURN_IF_ERROR(blocks_.carrier->broken());
  for (int peer = 0; peer < exchange_.ranks(); ++peer) {
    if (peer == exchange_.rank()) continue;
    // Before the cells, because it promises that those of its rounds are complete.
    const uint32_t released = ReleasedBy(peer);
    HC_RETURN_IF_ERROR(FailureOf(peer));
    HC_RETURN_IF_ERROR(PollCells(peer));
    exchange_.OnReleased(peer, released);
    if (lost_[static_cast<size_t>(peer)].load(std::memory_order_acquire) || HasClosed(peer)) {
      // The rank writes no more now, so this is all that there will be.
      HC_RETURN_IF_ERROR(FailureOf(peer));
      HC_RETURN_IF_ERROR(PollCells(peer));
      exchange_.OnLost(peer);
    }
  }
  return Status::Ok();
}

Status Window::PollCells(int peer) {
  const int own = exchange_.rank();
  const auto at = static_cast<size_t>(peer);
  if (exchange_.is_host(own) && rows_[at] < 0) {
    const CellWord& cell = BatchWord(own, peer);
    const uint64_t word = cell.word.load(std::memory_order_acquire);
    if (RoundOf(word) == exchange_.round()) {
      const uint32_t tag = cell.tag.load(std::memory_order_relaxed);
      if (tag != tag_) return Mismatch(peer, tag);
      for (size_t i = 0; i < row_bytes_.size(); ++i) {
        const int64_t theirs = cell.row_bytes[i].load(std::memory_order_relaxed);
        if (theirs != row_bytes_[i]) return RowMismatch(peer, theirs, row_bytes_[i]);
      }
      rows_[at] = RowsOf(word);
      exchange_.OnBatch(peer, rows_[at] > 0);
    }
  }
  if (exchange_.outcome(peer) == Outcome::kWaiting) {
    const uint64_t word = ResultWord(own, peer).word.load(std::memory_order_acquire);
    if (RoundOf(word) == exchange_.round()) exchange_.OnResult(peer);
  }
  return Status::Ok();
}

Status Window::FailureOf(int peer) const {
  const Failure& failure = Part<Failure>(exchange_.rank(), &Places::failures)[peer];
  if (failure.round.load(std::memory_order_acquire) != exchange_.round()) return Status::Ok();
  const size_t bytes = std::min<size_t>(failure.bytes.load(std::memory_order_relaxed), failure.text.size());
  std::string text(bytes, ' ');
  for (size_t i = 0; i < bytes; ++i) text[i] = failure.text[i].load(std::memory_order_relaxed);
  return {static_cast<StatusCode>(failure.code.load(std::memory_order_relaxed)), text};
}

std::string Window::NameOfTag(uint32_t tag) const {
  const MutexLock lock(names_mutex_);
  const auto found = tag_names_.find(tag);
  return found == tag_names_.end() ? "call " + std::to_string(tag) : found->second;
}

std::string Window::DescribeWait() const {
  std::string text;
  for (int peer = 0; peer < exchange_.ranks(); ++peer) {
    const char* what = exchange_.AwaitsRoom(peer)                     ? "room at "
                       : exchange_.outcome(peer) == Outcome::kWaiting ? "the result of "
                       : exchange_.Awaits(peer)                       ? "the tokens of "
                                                                      : nullptr;
    if (what != nullptr) text += (text.empty() ? "" : ", ") + (what + names_[static_cast<size_t>(peer)]);
  }
  if (failed_round_ != 0) text = "all ranks to leave a call that failed";
  return Name() + " in " + NameOfTag(tag_) + ", round " + std::to_string(exchange_.round()) + ", waits for " + text;
}

std::string Window::CallAhead(int rank) const {
  const int own = exchange_.rank();
  if (rank == own || !exchange_.is_host(own)) return "";
  const uint32_t next = entered_.load(std::memory_order_relaxed) + 1;
  const size_t number = static_cast<size_t>(rank) * geometry_.depth + next % geometry_.depth;
  const CellWord& cell = Part<CellWord>(own, &Places::batch_words)[number];
  const bool has_begun = RoundOf(cell.word.load(std::memory_order_acquire)) == next;
  return has_begun ? NameOfTag(cell.tag.load(std::memory_order_relaxed)) : "";
}

Status Window::Mismatch(int peer, uint32_t tag) const {
  return {StatusCode::kMismatch, Name() + " is in " + NameOfTag(tag_) + " while " + names_[static_cast<size_t>(peer)] +
                                     " is in " + NameOfTag(tag) + " (round " + std::to_string(exchange_.round()) +
                                     " of their window); call the layers in the same order on all ranks"};
}

Status Window::RowMismatch(int peer, int64_t theirs, int64_t own) const {
  return {StatusCode::kMismatch, Name() + " has rows of " + std::to_string(own) + " bytes in " + NameOfTag(tag_) +
                                     ", and " + names_[static_cast<size_t>(peer)] + " has rows of " +
                                     std::to_string(theirs) +
                                     "; all ranks must give the layer tokens of one length and element type"};
}

// Sleeps until there may be news since the doorbell showed `rung`; an error of `check`.
Status Window::Wait(uint32_t rung, int64_t until_ns, const Check& check) {
  net::Doorbell& bell = bells_[static_cast<size_t>(exchange_.rank())];
  const int64_t began_ns = NowNs();
  const int64_t spin_until_ns = std::min(until_ns, began_ns + spin_ns_);
  int64_t now_ns = began_ns;
  for (; bell.Rung() == rung && now_ns < spin_until_ns; now_ns = NowNs()) CpuRelax();
  Status status;
  if (bell.Rung() == rung && now_ns < until_ns) {
    int64_t longest_ns = kLongestSleepNs;
    if (blocks_.carrier != nullptr) {
      if (idle_since_ns_ == 0) {
        idle_since_ns_ = now_ns;
        blocks_.carrier->Hurry();
      }
      if (!blocks_.carrier->sees_arrivals()) longest_ns = Carrier::NapNs(now_ns - idle_since_ns_);
    }
    bell.Arm(net::Doorbell::kWaiter);
    Count(&ExchangeCounters::sleeps);
    bell.Sleep(rung, net::Doorbell::kWaiter, std::min(until_ns - now_ns, longest_ns));
    if (bell.Rung() == rung && check && NowNs() - checked_ns_ >= kLongestSleepNs) {
      status = check();
      checked_ns_ = NowNs();
    }
  }
  const int64_t slept_ns = NowNs() - began_ns;
  for (int i = 0; i < exchange_.ranks(); ++i) {
    if (!exchange_.Awaits(i) && !exchange_.AwaitsRoom(i)) continue;
    waited_ns_[static_cast<size_t>(i)] += slept_ns;
  }
  return status;
}

// Asks the hosts that have no room to ring when they release a round. True if one has not been asked before in this
// round; it may have released one meanwhile.
bool Window::AskForRoom() {
  bool asked = false;
  for (int host = 0; host < exchange_.ranks(); ++host) {
    if (!exchange_.AwaitsRoom(host) || IsRemote(host)) continue;  // a remote host tells of every round
    std::atomic<uint32_t>& wants = WantsRoom(host, exchange_.rank());
    if (wants.load(std::memory_order_relaxed) != 0) continue;
    wants.store(1, std::memory_order_seq_cst);
    asked = true;
  }
  return asked;
}

// Publishes that this rank has left the round, and wakes the ranks that may sleep because of it.
void Window::Release() {
  const int own = exchange_.rank();
  HeadOf(own).released.store(exchange_.round(), std::memory_order_seq_cst);
  for (int peer = 0; peer < exchange_.ranks(); ++peer) {
    if (peer == own) continue;
    if (IsRemote(peer)) {
      PostWord(peer, OffsetOf<uint64_t>(peer, &Places::released, own), exchange_.round());
      continue;
    }
    const bool awaits_batch = exchange_.is_host(peer) && !exchange_.Sent(peer);
    const bool awaits_result =
        exchange_.is_host(own) && !exchange_.Served(peer) && rows_[static_cast<size_t>(peer)] != 0;
    std::atomic<uint32_t>& wants = WantsRoom(own, peer);
    const bool awaits_room = wants.load(std::memory_order_seq_cst) != 0 && wants.exchange(0) != 0;
    if (awaits_batch || awaits_result || awaits_room) Ring(peer);
  }
  for (int host = 0; host < exchange_.ranks(); ++host) {
    const Outcome outcome = exchange_.outcome(host);
    const auto rows = static_cast<uint64_t>(plan_rows_[static_cast<size_t>(host)]);
    ExchangeCounters::Add(&counters_->rows[static_cast<size_t>(outcome)], rows);
    if (outcome == Outcome::kNone || outcome == Outcome::kDelivered) continue;
    const int rank = blocks_.ranks.empty() ? host : blocks_.ranks[static_cast<size_t>(host)];
    counters_->AddLost(outcome, rank, rows);
  }
}

void Window::Fail(const Status& why) {
  if (!exchange_.inside()) return;
  step_ = {};
  Count(&ExchangeCounters::failed_rounds);
  failed_round_ = exchange_.round();
  for (int peer = 0; peer < exchange_.ranks(); ++peer) {
    if (IsRemote(peer)) {
      PostFailure(peer, why);
      continue;
    }
    Failure& failure = Part<Failure>(peer, &Places::failures)[exchange_.rank()];
    const size_t bytes = std::min(why.message().size(), failure.text.size());
    for (size_t i = 0; i < bytes; ++i) failure.text[i].store(why.message()[i], std::memory_order_relaxed);
    failure.bytes.store(static_cast<uint32_t>(bytes), std::memory_order_relaxed);
    failure.code.store(static_cast<int32_t>(why.code()), std::memory_order_relaxed);
    failure.round.store(failed_round_, std::memory_order_release);
  }
  exchange_.Leave();
  Release();
  for (int peer = 0; peer < exchange_.ranks(); ++peer) {
    if (peer != exchange_.rank()) Ring(peer);
  }
}

void Window::Lose(int rank) {
  lost_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
  if (blocks_.carrier != nullptr) blocks_.carrier->Lose(rank, names_[static_cast<size_t>(rank)]);
  bells_[static_cast<size_t>(exchange_.rank())].Ring();
}

bool Window::HasClosed(int rank) const { return Closed(exchange_.rank(), rank).load(std::memory_order_acquire) != 0; }

void Window::Close() {
  if (closed_.exchange(true)) return;
  for (int peer = 0; peer < exchange_.ranks(); ++peer) {
    if (peer == exchange_.rank()) continue;
    if (IsRemote(peer)) {
      PostWord(peer, OffsetOf<uint64_t>(peer, &Places::closed, exchange_.rank()), 1);
      continue;
    }
    // A lost rank's doorbell wakes no thread, but its memory is mapped.
    Closed(peer, exchange_.rank()).store(1, std::memory_order_release);
    Ring(peer);
  }
  if (blocks_.carrier != nullptr) blocks_.carrier->Finish();
}

bool Window::IsForgotten() const {
  for (int peer = 0; peer < exchange_.ranks(); ++peer) {
    if (peer != exchange_.rank() && !HasClosed(peer)) return false;
  }
  return true;
}

}  // namespace horocache::moe
