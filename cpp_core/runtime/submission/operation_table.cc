#include "runtime/submission/operation_table.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/futex.h"
#include "base/text.h"
#include "control/signature.h"
#include "runtime/submission/prepare.h"

namespace horocache::runtime {
namespace {

using Kind = observe::FlightRecorder::Kind;

// Memory of a name in the map besides its text: a node, the text's allocation, a bucket.
constexpr size_t kBytesOfName = 96;
constexpr size_t kManyGroups = 256;
constexpr size_t kMostPending = 4096;  // limit of listed operations

// A template, because a std::function would need memory.
template <typename Call>
void Report(Call report) {
  try {
    report();
  } catch (const std::bad_alloc&) {  // the flight record and the log then lack this failure
  }
}

}  // namespace

Operation* OperationTable::New() {
  MutexLock lock(mutex_);
  return TakeFree();
}

Operation* OperationTable::TakeFree() {
  if (free_slots_.empty()) {
    // Recycle must find room without allocating.
    if (free_slots_.capacity() <= slots_.size()) free_slots_.reserve(2 * slots_.size() + 1);
    slots_.push_back({std::make_unique<Operation>()});
    return Take(static_cast<int>(slots_.size()) - 1);
  }
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  return Take(slot);
}

Operation* OperationTable::Take(int slot) {
  slots_[slot].used = true;
  Operation* operation = slots_[slot].operation.get();
  operation->handle = slot | (slots_[slot].generation << kSlotBits);
  return operation;
}

Operation* OperationTable::NewGroup(std::string_view name) {
  MutexLock lock(mutex_);
  const auto known = groups_.find(name);
  if (known != groups_.end() && known->second != kNoSlot) return Take(std::exchange(known->second, kNoSlot));
  Operation* const operation = TakeFree();
  if (known != groups_.end()) return operation;  // another group of the name is in flight, maybe in another process set
  if (groups_.size() >= kManyGroups) ForgetGroups();
  operation->prepared.home = &groups_.emplace(name, kNoSlot).first->second;
  return operation;
}

// Frees the records of groups that are not in flight. Otherwise a program that keeps making new names would fill the
// table.
void OperationTable::ForgetGroups() {
  std::erase_if(groups_, [this](const auto& group) HC_NO_THREAD_SAFETY_ANALYSIS {
    if (group.second == kNoSlot) return false;
    slots_[group.second].operation->prepared = {};
    free_slots_.push_back(group.second);
    return true;
  });
}

OperationTable::Names& OperationTable::NamesOf(const Operation& operation) {
  while (names_.size() <= operation.process_set) names_.emplace_back();
  return names_[operation.process_set];
}

void OperationTable::GiveName(Operation* operation) {
  wire::Signature& signature = operation->request.signature;
  if (!signature.name.empty()) return;
  const auto op = static_cast<size_t>(signature.op);
  Names& names = NamesOf(*operation);
  Numbers& free = names.free_numbers[op];
  if (free.empty()) {
    operation->automatic_number = names.next_number[op]++;
  } else {
    operation->automatic_number = free.top();
    free.pop();
  }
  signature.name.append(wire::OpName(signature.op))
      .append(".noname.")
      .append(std::to_string(operation->automatic_number));
  for (size_t i = 0; i < signature.tensors.size(); ++i) NameMember(i, false, &signature);
}

// Removes the free names. Each sweep frees at least half of the names' bytes or doubles the limit, so the cost per name
// is constant on average.
void OperationTable::SweepNames(Names* names) {
  names->bytes = 0;
  std::erase_if(names->in_flight, [&](const auto& entry) {
    if (entry.second) names->bytes += entry.first.size() + kBytesOfName;
    return !entry.second;
  });
  names->sweep_at = std::max(kLeastNameBytes, 2 * names->bytes);
  ++names_epoch_;
}

size_t OperationTable::KeptNames(uint32_t process_set) const {
  MutexLock lock(mutex_);
  return process_set < names_.size() ? names_[process_set].in_flight.size() : 0;
}

Status OperationTable::ClaimName(Operation* operation, const std::string& name) {
  Names& names = NamesOf(*operation);
  auto it = names.in_flight.find(std::string_view(name));
  if (it == names.in_flight.end()) {
    if (names.bytes >= names.sweep_at) SweepNames(&names);
    it = names.in_flight.emplace(name, false).first;
    names.bytes += name.size() + kBytesOfName;
  }
  if (it->second) {
    return {StatusCode::kDuplicateName,
            "'" + Printable(name) +
                "' is in flight already: a tensor of this name was submitted and has not completed. Wait for it first, "
                "or give each tensor a name of its own."};
  }
  operation->claimed.push_back(&it->second);
  it->second = true;
  return Status::Ok();
}

void OperationTable::FreeNames(Operation* operation) {
  if (!std::exchange(operation->holds_names, false)) return;
  for (bool* flag : operation->claimed) *flag = false;
}

// Claims the names of an unchanged request by their known flags. Returns false, with nothing claimed, if the flags are
// out of date or a name is in flight.
bool OperationTable::ClaimAgain(Operation* operation) {
  if (!operation->prepared.same_request || operation->prepared.names_epoch != names_epoch_) return false;
  if (std::ranges::any_of(operation->claimed, [](const bool* taken) { return *taken; })) return false;
  for (bool* flag : operation->claimed) *flag = true;
  operation->holds_names = true;
  return true;
}

Status OperationTable::ClaimNames(Operation* operation) {
  if (wire::IsPointToPoint(operation->request.signature.op)) return Status::Ok();
  if (ClaimAgain(operation)) return Status::Ok();
  GiveName(operation);
  operation->claimed.clear();
  operation->holds_names = true;
  Status status;
  control::ForEachKey(operation->request.signature, [&](const std::string& name) HC_NO_THREAD_SAFETY_ANALYSIS {
    if (status.ok()) status = ClaimName(operation, name);
  });
  if (!status.ok()) FreeNames(operation);
  operation->prepared.names_epoch = names_epoch_;
  return status;
}

Status OperationTable::Add(Operation* operation, int64_t now_ns, bool* first) {
  MutexLock lock(mutex_);
  // A queued operation runs in any case, so nothing may throw once it is queued.
  if (queued_.size() == queued_.capacity()) queued_.reserve(2 * queued_.size() + 1);
  HC_RETURN_IF_ERROR(ClaimNames(operation));
  if (!operation->prepared.same_request) {
    operation->bytes = control::SignatureBytes(operation->request.signature);
    operation->prepared.entry = {};
  }
  operation->prepared.filled = operation->prepared.home != nullptr;
  operation->submitted_ns = now_ns;
  Record(Kind::kSubmitted, *operation, now_ns);
  const bool message = wire::IsPointToPoint(operation->request.signature.op);
  operation->waits_in.store(message ? Operation::kMessage : operation->process_set, std::memory_order_relaxed);
  *first = queued_.empty();
  queued_.push_back(operation);
  queued_count_.store(queued_.size(), std::memory_order_seq_cst);
  return Status::Ok();
}

void OperationTable::Drain(std::vector<Operation*>* out) {
  out->clear();
  if (!HasQueued()) return;
  MutexLock lock(mutex_);
  std::swap(*out, queued_);
  queued_count_.store(0, std::memory_order_seq_cst);
}

Operation* OperationTable::Find(int64_t handle) {
  MutexLock lock(mutex_);
  const int64_t slot = handle & ((int64_t{1} << kSlotBits) - 1);
  if (handle < 0 || slot >= static_cast<int64_t>(slots_.size())) return nullptr;
  const Slot& found = slots_[slot];
  const bool known = found.used && found.operation->handle == handle && !found.operation->released;
  return known ? found.operation.get() : nullptr;
}

void OperationTable::Record(Kind kind, const Operation& operation, int64_t now_ns, uint64_t sequence) const {
  const wire::Signature& signature = operation.request.signature;
  recorder_->Add({.at_ns = now_ns,
                  .kind = kind,
                  .op = signature.op,
                  .process_set = operation.process_set,
                  .tensors = static_cast<uint32_t>(signature.tensors.size()),
                  .handle = operation.handle,
                  .bytes = operation.bytes,
                  .sequence = sequence,
                  .text = signature.name});
}

void OperationTable::NoteStarted(const Operation& operation, uint64_t sequence, int64_t now_ns) const {
  Record(Kind::kStarted, operation, now_ns, sequence);
}

std::vector<observe::PendingOperation> OperationTable::Pending() const {
  std::vector<observe::PendingOperation> pending;
  MutexLock lock(mutex_);
  for (const Slot& slot : slots_) {
    const Operation& operation = *slot.operation;
    // A record's request does not change between its submission and its return to the pool.
    if (!slot.used || operation.submitted_ns == 0 || IsDone(operation) || pending.size() == kMostPending) continue;
    const wire::Signature& signature = operation.request.signature;
    pending.push_back({.name = signature.name,
                       .op = signature.op,
                       .process_set = operation.process_set,
                       .tensors = static_cast<uint32_t>(signature.tensors.size()),
                       .handle = operation.handle,
                       .bytes = operation.bytes,
                       .submitted_ns = operation.submitted_ns});
  }
  return pending;
}

void OperationTable::Finish(Operation* operation, Status status) {
  if (!operation->blocks.empty()) {
    Status kept = ReleaseBlocks(operation);
    if (status.ok()) status = std::move(kept);
  }
  Record(status.ok() ? Kind::kDone : Kind::kFailed, *operation, NowNs());
  if (!status.ok()) Report([&] { callbacks_.on_failure(status); });
  const uint32_t process_set = operation->process_set;
  const bool launched = Reached(*operation, OperationState::kLaunched);
  bool released = false, detached = false;
  Listener listener;
  {
    MutexLock lock(mutex_);
    FreeNames(operation);
    released = operation->released;
    listener = std::exchange(operation->listener, {});
    detached = std::exchange(operation->detached, false);
    if (detached) --detached_;
    if (operation->owner != nullptr) NoteFinished(operation);
    if (released) {
      PutBack(operation);
    } else {
      operation->status = std::move(status);
      operation->state.store(static_cast<uint32_t>(OperationState::kDone), std::memory_order_seq_cst);
    }
  }
  if (!released) Wake(operation);
  if (released && !detached) NoteUnseen(status, process_set);
  if (listener.on_done != nullptr) listener.on_done(listener.context, detached ? std::move(status) : Status::Ok());
  if (released) callbacks_.on_freed();
  if (launched) launched_.fetch_sub(1);
}

void OperationTable::NoteUnseen(const Status& status, uint32_t process_set) {
  if (!status.ok()) Report([&] { callbacks_.on_unseen_failure(status, process_set); });
}

void OperationTable::NoteLaunched(Operation* operation, std::shared_ptr<const cuda::Event> on_device) {
  {
    MutexLock lock(mutex_);
    FreeNames(operation);
  }
  launched_.fetch_add(1);
  operation->on_device = std::move(on_device);
  operation->state.store(static_cast<uint32_t>(OperationState::kLaunched), std::memory_order_seq_cst);
  Wake(operation);
}

void OperationTable::Wake(Operation* operation) const {
  if (operation->sleepers.load(std::memory_order_seq_cst) == 0) return;
  metrics_->wakes.Add(1);
  FutexWake(operation->state);
}

void OperationTable::NoteFinished(Operation* operation) {
  if (operation->released) {
    freed_.push_back(std::exchange(operation->owner, nullptr));
  } else {
    try {
      finished_.push_back({operation, operation->handle});
    } catch (const std::bad_alloc&) {
      return;  // the owner is dropped when the operation is consumed
    }
  }
  finished_count_.store(finished_.size() + freed_.size(), std::memory_order_relaxed);
}

void OperationTable::FailAll(const Status& why) {
  size_t slots = 0;
  {
    MutexLock lock(mutex_);
    queued_.clear();
    queued_count_.store(0, std::memory_order_seq_cst);
    slots = slots_.size();
  }
  for (size_t slot = 0; slot < slots; ++slot) {
    Operation* operation = nullptr;
    {
      MutexLock lock(mutex_);
      operation = slots_[slot].operation.get();
      if (!slots_[slot].used || operation->submitted_ns == 0 || IsDone(*operation)) continue;
    }
    Status status(why.code(), std::string(kNoMemory));
    try {
      status = why;
    } catch (const std::bad_alloc&) {
    }
    Finish(operation, std::move(status));
  }
}

void OperationTable::TakeOwners(std::vector<void*>* owners) {
  if (finished_count_.load(std::memory_order_relaxed) == 0) return;
  MutexLock lock(mutex_);
  for (const auto& [operation, handle] : finished_) {
    if (operation->handle == handle && operation->owner != nullptr)
      owners->push_back(std::exchange(operation->owner, nullptr));
  }
  finished_.clear();
  owners->insert(owners->end(), freed_.begin(), freed_.end());
  freed_.clear();
  finished_count_.store(0, std::memory_order_relaxed);
}

void OperationTable::ForgetSet(uint32_t process_set) {
  MutexLock lock(mutex_);
  if (process_set >= names_.size()) return;
  Names& names = names_[process_set];
  // Operations in flight point to flags in the map.
  if (std::ranges::any_of(names.in_flight, [](const auto& entry) { return entry.second; })) return;
  names = Names();
  ++names_epoch_;
}

bool OperationTable::Release(Operation* operation, std::vector<Result>* results) {
  MutexLock lock(mutex_);
  if (IsDone(*operation)) return false;
  ReserveFreed();
  FreeNumber(operation);
  *results = std::move(operation->results);
  return operation->released = true;
}

// Finish must find room without allocating.
void OperationTable::ReserveFreed() {
  const size_t most = freed_.size() + static_cast<size_t>(launched_.load()) + detached_;
  if (freed_.capacity() <= most) freed_.reserve(2 * most + 1);
}

OperationTable::Listens OperationTable::Listen(Operation* operation, const Listener& listener, bool detach) {
  MutexLock lock(mutex_);
  if (IsDone(*operation)) return Listens::kIsDone;
  if (operation->listener.on_done != nullptr) return Listens::kHasListener;
  if (detach) {
    ReserveFreed();
    ++detached_;
    operation->detached = operation->released = true;
  }
  operation->listener = listener;
  return Listens::kYes;
}

// The lowest free number is the next one, and all ranks must give an operation the same: so it is freed when the
// program consumes the handle, not when this rank's device is done.
void OperationTable::FreeNumber(Operation* operation) {
  if (operation->automatic_number < 0) return;
  const auto op = static_cast<size_t>(operation->request.signature.op);
  try {
    NamesOf(*operation).free_numbers[op].push(std::exchange(operation->automatic_number, -1));
  } catch (const std::bad_alloc&) {  // the number is not used again
  }
}

void OperationTable::Recycle(Operation* operation) {
  MutexLock lock(mutex_);
  FreeNames(operation);
  FreeNumber(operation);
  PutBack(operation);
}

void OperationTable::PutBack(Operation* operation) {
  operation->process_set = 0;
  operation->first_ready_ns = 0;
  operation->submitted_ns = 0;
  operation->message = 0;
  operation->patient = false;
  operation->batch = 0;
  operation->owner = nullptr;
  operation->computed.reset();
  RowLists& rows = operation->rows;
  for (auto* list : {&rows.splits, &rows.send_starts, &rows.receive_rows, &rows.receive_starts}) list->clear();
  operation->results.clear();
  operation->blocks.clear();
  operation->status = Status::Ok();
  operation->released = false;
  operation->on_device.reset();
  operation->state.store(static_cast<uint32_t>(OperationState::kPending), std::memory_order_relaxed);
  const int slot = static_cast<int>(operation->handle & ((int64_t{1} << kSlotBits) - 1));
  ++slots_[slot].generation;
  slots_[slot].used = false;
  operation->handle = -1;
  if (operation->prepared.home != nullptr) {
    *operation->prepared.home = slot;
  } else {
    free_slots_.push_back(slot);
  }
}

}  // namespace horocache::runtime
