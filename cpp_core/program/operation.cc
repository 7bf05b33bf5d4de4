// How an operation finds its program, and the exchange of sizes before. operation_run.cc has the run itself.
#include "program/operation.h"

#include <algorithm>
#include <utility>

#include "control/hashing.h"
#include "data/row_layout.h"
#include "net/mpi/orphaned_requests.h"

namespace horocache::program {
namespace {

bool HasRows(wire::Op op) { return wire::SizesDiffer(op) || op == wire::Op::kReducescatter; }

bool AllEqual(const std::vector<int64_t>& numbers) {
  return std::ranges::adjacent_find(numbers, std::ranges::not_equal_to()) == numbers.end();
}

}  // namespace

ProgramTask::ProgramTask(ProgramQueue* queue, data::Collective collective)
    : QueuedTask(queue, std::move(collective), queue->rank, queue->size), queue_(*queue) {
  for (const data::Segment& segment : collective_.segments) total_ += segment.count;
}

ProgramTask::~ProgramTask() {
  if (inner_ != nullptr && inner_->must_poll()) net::KeepUntilExit(std::move(facts_));
}

observe::Phase ProgramTask::phase() const {
  switch (state_) {
    case State::kBuiltIn:
      return inner_->phase();
    case State::kLoad:
      return observe::Phase::kPack;
    case State::kStore:
      return observe::Phase::kUnpack;
    default:
      return observe::Phase::kTransfer;
  }
}

bool ProgramTask::must_poll() const { return queue_.links->must_poll() || (inner_ != nullptr && inner_->must_poll()); }

void ProgramTask::AddWaitingFor(std::vector<int>* ranks) const {
  if (inner_ != nullptr) return inner_->AddWaitingFor(ranks);
  if (state_ == State::kWait && queue_.links->Behind() >= 0) ranks->push_back(queue_.links->Behind());
  if (state_ != State::kRun) return;
  run_->AddWaitingFor(ranks);
  if (run_->finished()) queue_.links->AddUnsettled(ranks);
}

std::string ProgramTask::Details() const {
  if (state_ != State::kRun || run_->finished()) return "";
  constexpr size_t kMostLines = 32;
  std::string text = "\nProgram '" + program_->name + "' runs:";
  for (const std::string& line : run_->Blocked(kMostLines)) text += "\n  " + line;
  return text;
}

bool ProgramTask::folds() const { return wire::HasReduceOp(collective_.op); }

bool ProgramTask::Step(int64_t* budget) {
  switch (state_) {
    case State::kBegin:
      return Begin();
    case State::kWait:
      return queue_.links->Ready() && StartRun();
    case State::kLoad:
      if (Moved(loads_, budget)) state_ = State::kRun;
      return true;
    case State::kRun:
      return Run(budget);
    case State::kStore:
      if (Moved(stores_, budget)) state_ = State::kDone;
      return true;
    default:
      if (inner_->Test()) return EndInner();
      *budget = 0;  // the inner operation has used it
      return inner_->progressed();
  }
}

bool ProgramTask::EndInner() {
  if (Status broken = queue_.resources.built_in->broken(); !broken.ok()) queue_.Break(std::move(broken));
  if (state_ == State::kCompare) return Agree();
  return state_ == State::kConfirm ? Confirm() : EndBuiltIn();
}

bool ProgramTask::Begin() {
  std::string why;
  if (!collective_.joined.empty()) return UseBuiltIn("a rank has joined, and takes no part");
  program_ = Choose(total_ * element_bytes_, &why);
  if (program_ == nullptr) return UseBuiltIn(why);
  if (HasRows(collective_.op)) return Exchange(OwnFacts(), State::kCompare);
  return Plan(total_, &why) ? Place() : UseBuiltIn(why);
}

const LibraryProgram* ProgramTask::Choose(int64_t bytes, std::string* why) const {
  const std::vector<LibraryProgram>& programs = queue_.resources.library->programs;
  if (collective_.algorithm > 0) {
    const LibraryProgram& one = programs[collective_.algorithm - 1];
    *why = Misfit(one);
    return why->empty() ? &one : nullptr;
  }
  *why = "there is no program for it";
  for (const LibraryProgram& one : programs) {
    if (one.op != collective_.op) continue;
    std::string wrong = Misfit(one);
    if (wrong.empty()) wrong = NotFor(one, bytes);
    if (wrong.empty()) return &one;
    *why = "program '" + one.name + "': " + wrong;
  }
  return nullptr;
}

// Returns why the program cannot run this operation; empty if it can.
std::string ProgramTask::Misfit(const LibraryProgram& one) const {
  if (one.op != collective_.op) return "it is for " + std::string(wire::OpName(one.op));
  if (one.program.ranks != size()) return "it is for " + std::to_string(one.program.ranks) + " ranks";
  if (one.root != collective_.root && wire::HasRoot(one.op)) return "it is for root " + std::to_string(one.root);
  return "";
}

// Returns why a program that can run is not chosen automatically; empty if it may be.
std::string ProgramTask::NotFor(const LibraryProgram& one, int64_t bytes) const {
  const bool fits = bytes >= one.min_bytes && (one.max_bytes == 0 || bytes < one.max_bytes);
  if (!HasRows(one.op) && !fits) return "it is for other sizes";
  const bool rounds = IsFloat(collective_.dtype) || IsComplex(collective_.dtype);
  if (!folds() || !rounds || one.in_rank_order) return "";
  return "it adds up in another order than rank order, which HOROCACHE_PROGRAMS_ANY_ORDER=1 allows";
}

// ---- where sizes differ by rank ----------------------------------------------------------------------------------

// True if every rank gets the same number of the `rows` rows.
bool ProgramTask::Even(int64_t rows) const {
  const std::vector<int64_t>& splits = collective_.splits;
  const int64_t places = PlacesOf(collective_.op, size(), rank(), collective_.root).input;
  if (splits.empty() || places <= 1) return splits.empty() && rows % std::max<int64_t>(places, 1) == 0;
  return splits.size() == static_cast<size_t>(size()) && AllEqual(splits) && splits[0] * size() == rows;
}

ProgramTask::Facts ProgramTask::OwnFacts() const {
  const int64_t places = PlacesOf(collective_.op, size(), rank(), collective_.root).input;
  const StatusOr<int64_t> rows = data::RowsOf(collective_, rank());
  const bool plain =
      collective_.send_starts.empty() && collective_.receive_starts.empty() && collective_.receive_rows.empty();
  if (!plain || !rows.ok()) return {0, kUnusual};
  control::Hasher hash;
  hash.Add(static_cast<uint64_t>(collective_.row_elements));
  hash.Add(collective_.sequence);
  const auto detail = static_cast<int64_t>(hash.value() >> 1);
  if (places == 0) return {0, detail};
  return total_ > 0 && Even(*rows) ? Facts{total_ / places, detail} : Facts{0, kUnusual};
}

bool ProgramTask::Exchange(const Facts& facts, State next) {
  own_ = facts;
  received_.allocate = [this](int64_t bytes) -> StatusOr<std::byte*> {
    facts_.resize(static_cast<size_t>(bytes) / sizeof(Facts));
    return reinterpret_cast<std::byte*>(facts_.data());
  };
  data::Collective exchange;
  exchange.op = wire::Op::kAllgather;
  exchange.dtype = DType::kInt64;
  exchange.segments.push_back({reinterpret_cast<const std::byte*>(&own_), nullptr, sizeof(Facts) / sizeof(int64_t)});
  exchange.output = &received_;
  exchange.names = collective_.names;
  exchange.sequence = collective_.sequence;
  inner_ = queue_.resources.built_in->Start(std::move(exchange));
  state_ = next;
  return true;
}

bool ProgramTask::Agree() {
  if (!inner_->status().ok()) return EndWith(inner_->status());
  inner_.reset();
  bool alike = true;
  for (const Facts& facts : facts_) {
    if (elements_ == 0) elements_ = facts.elements;
    alike &= facts.detail == facts_[0].detail && facts.detail != kUnusual;
    alike &= facts.elements == 0 || facts.elements == elements_;
  }
  std::string why = "the ranks have different sizes, or want their rows elsewhere";
  if (!alike || elements_ == 0 || !Plan(elements_, &why)) return UseBuiltIn(why);
  const int64_t bytes = AllocateResult();
  const bool asks = size() * elements_ * element_bytes_ >= data::kConfirmedBytes;
  return asks ? Exchange({status_.ok() ? 0 : bytes, 0}, State::kConfirm) : Place();
}

// Returns the size of the result in bytes. If the allocation fails, status_ has the error; a short operation still
// runs, because the other ranks depend on it.
int64_t ProgramTask::AllocateResult() {
  const Places places = PlacesOf(collective_.op, size(), rank(), collective_.root);
  const int64_t bytes = places.output * elements_ * element_bytes_;
  if (collective_.output == nullptr) {
    if (!collective_.segments.empty()) result_ = collective_.segments[0].output;
    return bytes;
  }
  const int64_t rows = elements_ / std::max<int64_t>(1, collective_.row_elements);
  std::vector<int64_t>& from = collective_.output->rows;
  from.assign(static_cast<size_t>(size()), places.output > 0 ? rows : 0);
  for (int r = 0; r < size() && collective_.op == wire::Op::kScatter; ++r) {
    if (r != collective_.root) from[static_cast<size_t>(r)] = 0;
  }
  StatusOr<std::byte*> memory = collective_.output->allocate(bytes);
  status_ = memory.status();
  if (memory.ok()) result_ = *memory;
  return bytes;
}

bool ProgramTask::Confirm() {
  if (!inner_->status().ok()) return EndWith(inner_->status());
  inner_.reset();
  for (int r = 0; r < size(); ++r) {
    const int64_t bytes = facts_[static_cast<size_t>(r)].elements;
    if (bytes == 0) continue;
    if (!status_.ok()) return EndWith(status_);
    return EndWith({StatusCode::kOutOfMemory,
                    collective_.Rank(r) + " has no memory for its result of " + std::to_string(bytes) + " bytes"});
  }
  return Place();
}

// ---- without a program -------------------------------------------------------------------------------------------

bool ProgramTask::UseBuiltIn(const std::string& why) {
  const bool named = collective_.algorithm > 0;
  const std::string who = named ? "program '" + queue_.resources.library->programs[collective_.algorithm - 1].name + "'"
                                : std::string("backend program");
  const std::string text =
      who + " leaves " + std::string(wire::OpName(collective_.op)) + " to the built-in algorithm: " + why;
  if (queue_.resources.log && queue_.logged.insert(text).second) queue_.resources.log(text);
  data::Collective copy = collective_;
  copy.algorithm = 0;
  inner_ = queue_.resources.built_in->Start(std::move(copy));
  state_ = State::kBuiltIn;
  return true;
}

bool ProgramTask::EndBuiltIn() { return EndWith(inner_->status()); }

bool ProgramTask::EndWith(Status status) {
  status_ = std::move(status);
  inner_.reset();
  state_ = State::kDone;
  return true;
}

}  // namespace horocache::program
