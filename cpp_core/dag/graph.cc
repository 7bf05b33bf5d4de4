#include "dag/graph.h"

#include <algorithm>
#include <string>
#include <utility>

namespace horocache::dag {

template <typename T>
uint32_t Graph::TakeSlot(std::vector<T>* slots, std::vector<uint32_t>* free) {
  if (free->empty()) {
    if (slots->size() == slots->capacity()) {
      ++allocations_;
      slots->reserve(std::max<size_t>(64, 2 * slots->size()));
      free->reserve(slots->capacity());  // so that giving a slot back needs no memory
    }
    slots->emplace_back();
    return static_cast<uint32_t>(slots->size() - 1);
  }
  const uint32_t slot = free->back();
  free->pop_back();
  return slot;
}

const Graph::Variable* Graph::FindVariable(Handle handle) const {
  const uint32_t slot = SlotOf(handle);
  if (slot >= variables_.size()) return nullptr;
  const Variable& variable = variables_[slot];
  return variable.used && !variable.closed && variable.generation == GenerationOf(handle) ? &variable : nullptr;
}

const Graph::Entry* Graph::FindEntry(Handle handle) const {
  const uint32_t slot = SlotOf(handle);
  if (slot >= operations_.size()) return nullptr;
  const Entry& entry = operations_[slot];
  return entry.used && entry.generation == GenerationOf(handle) ? &entry : nullptr;
}

const Graph::Operation* Graph::Find(Handle operation) const {
  const Entry* const entry = FindEntry(operation);
  return entry == nullptr ? nullptr : &entry->operation;
}

Handle Graph::AddVariable(bool carries) {
  const uint32_t slot = TakeSlot(&variables_, &free_variables_);
  Variable& variable = variables_[slot];
  variable.used = true;
  variable.carries = carries;
  ++variables_used_;
  return HandleOf(slot, variable.generation);
}

Status Graph::DeleteVariable(Handle handle) {
  Variable* const variable = FindVariable(handle);
  if (variable == nullptr) return InvalidArgumentError("the variable has been deleted");
  variable->closed = true;
  FreeIfClosed(SlotOf(handle));
  return Status::Ok();
}

void Graph::FreeIfClosed(uint32_t slot) {
  Variable& variable = variables_[slot];
  if (!variable.closed || variable.readers > 0 || variable.written || variable.first != kNone) return;
  const uint32_t generation = variable.generation;
  variable = Variable();
  variable.generation = generation + 1;
  free_variables_.push_back(slot);
  --variables_used_;
}

bool Graph::IsReadable(Handle handle) const {
  const Variable* const variable = FindVariable(handle);
  return variable != nullptr && !variable->written && variable->first == kNone;
}

bool Graph::IsUsed(Handle handle) const {
  const Variable* const variable = FindVariable(handle);
  return variable != nullptr && (variable->written || variable->readers > 0 || variable->first != kNone);
}

bool Graph::IsIdle(Handle handle) const {
  const Variable* const variable = FindVariable(handle);
  return variable != nullptr && !IsUsed(handle) && variable->failure == nullptr;
}

uint64_t Graph::version(Handle handle) const {
  const Variable* const variable = FindVariable(handle);
  return variable == nullptr ? 0 : variable->version;
}

StatusOr<Handle> Graph::Push(const Operation& operation, std::span<const Handle> reads,
                             std::span<const Handle> writes) {
  for (const std::span<const Handle> handles : {writes, reads}) {
    for (const Handle handle : handles) {
      if (FindVariable(handle) == nullptr) {
        return InvalidArgumentError("an operation " +
                                    std::string(handles.data() == writes.data() ? "writes" : "reads") +
                                    " a variable that has been deleted");
      }
    }
  }
  const uint32_t slot = TakeSlot(&operations_, &free_operations_);
  {
    Entry& entry = operations_[slot];
    entry.operation = operation;
    entry.sequence = pushed_++;
    entry.used = true;
  }
  ++pending_;
  for (const Handle handle : writes) AddUse(slot, handle, true);
  for (const Handle handle : reads) AddUse(slot, handle, false);
  if (ready_.capacity() < pending_) {  // so that the end of an operation needs no memory
    ++allocations_;
    ready_.reserve(2 * pending_);
  }
  const Entry& entry = operations_[slot];
  if (entry.missing == 0) ready_.push_back(slot);
  return HandleOf(slot, entry.generation);
}

void Graph::AddUse(uint32_t operation, Handle handle, bool writes) {
  const uint32_t variable_slot = SlotOf(handle);
  Variable& variable = variables_[variable_slot];
  Entry& entry = operations_[operation];
  if (variable.named_by == entry.sequence + 1) return;  // named before; writes come first
  variable.named_by = entry.sequence + 1;
  const uint32_t slot = TakeSlot(&uses_, &free_uses_);
  Use& use = uses_[slot];
  use = {operation, variable_slot, entry.uses, kNone, writes};
  entry.uses = slot;
  const bool is_free = variable.first == kNone && !variable.written && !(writes && variable.readers > 0);
  if (is_free && writes) variable.written = true;
  if (is_free && !writes) ++variable.readers;
  if (is_free) return;
  ++entry.missing;
  if (variable.first == kNone) {
    variable.first = slot;
  } else {
    uses_[variable.last].next_of_variable = slot;
  }
  variable.last = slot;
}

void Graph::Grant(Variable* variable, uint32_t slot) {
  const Use& use = uses_[slot];
  variable->first = use.next_of_variable;
  if (variable->first == kNone) variable->last = kNone;
  if (use.writes) {
    variable->written = true;
  } else {
    ++variable->readers;
  }
  if (--operations_[use.operation].missing == 0) ready_.push_back(use.operation);
}

void Graph::Advance(Variable* variable) {
  while (variable->first != kNone && !variable->written) {
    if (uses_[variable->first].writes && variable->readers > 0) return;
    Grant(variable, variable->first);
  }
}

Status Graph::Complete(Handle operation, FailurePtr failure) {
  const Entry* const found = FindEntry(operation);
  if (found == nullptr || found->missing > 0) return InvalidArgumentError("the operation has been completed before");
  const uint32_t slot = SlotOf(operation);
  for (uint32_t at = found->uses; at != kNone;) {
    const Use use = uses_[at];
    Variable& variable = variables_[use.variable];
    if (use.writes) {
      variable.written = false;
      ++variable.version;
      if (failure != nullptr && variable.carries && variable.failure == nullptr) variable.failure = failure;
    } else {
      --variable.readers;
    }
    free_uses_.push_back(at);
    Advance(&variable);
    FreeIfClosed(use.variable);
    at = use.next_of_operation;
  }
  Entry& entry = operations_[slot];
  const uint32_t generation = entry.generation;
  entry = Entry();
  entry.generation = generation + 1;
  free_operations_.push_back(slot);
  --pending_;
  return Status::Ok();
}

void Graph::TakeReady(std::vector<Handle>* ready) {
  // Few at a time, and mostly in order already.
  std::ranges::sort(ready_, {}, [this](uint32_t slot) { return operations_[slot].sequence; });
  for (const uint32_t slot : ready_) ready->push_back(HandleOf(slot, operations_[slot].generation));
  ready_.clear();
}

FailurePtr Graph::Inherited(Handle operation) const {
  const Entry* const entry = FindEntry(operation);
  if (entry == nullptr) return nullptr;
  for (uint32_t at = entry->uses; at != kNone; at = uses_[at].next_of_operation) {
    if (const FailurePtr& failure = variables_[uses_[at].variable].failure) return failure;
  }
  return nullptr;
}

FailurePtr Graph::TakeFailure(Handle handle) {
  Variable* const variable = FindVariable(handle);
  return variable == nullptr ? nullptr : std::exchange(variable->failure, nullptr);
}

void Graph::ForgetFailures() {
  for (Variable& variable : variables_) variable.failure = nullptr;
}

}  // namespace horocache::dag
