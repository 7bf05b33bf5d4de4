// Steps of all bindings on the way from tensors to an operation that can be submitted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/status.h"
#include "net/shm/shared_heap.h"
#include "runtime/submission/operation.h"
#include "wire/message.h"

namespace horocache::runtime {

// Describes tensor `index`: the metadata that ranks compare, and its memory. Leaves its output unset. Requires that
// operation->request.signature.op is set and that the vectors of tensors have their size.
void DescribeTensor(size_t index, DType dtype, std::span<const int64_t> shape, const std::byte* data,
                    Operation* operation);

// Sets the memory for the result of tensor `index`, which DescribeTensor has described. Returns kInvalidArgument unless
// it has the same type and, but for operations on rows, the same number of elements.
Status SetOutput(size_t index, DType dtype, int64_t count, std::byte* data, Operation* operation);

// Names tensor `index` after its request: the same name, or "NAME_2of5" for a member of a group.
void NameMember(size_t index, bool group, wire::Signature* signature);

// For an operation on rows: returns kInvalidArgument if the caller's memory for a result overlaps a tensor or another
// result, or if this rank gets a result and the caller has given no memory; kUnsupported for CUDA tensors. Ok if the
// core allocates the results.
Status CheckResults(const Operation& operation, bool receives);

// Returns kInvalidArgument if results of an allreduce group overlap in memory.
Status CheckApart(const Operation& operation);

// Takes references to the blocks of `heap` that contain the operation's tensors, so that the blocks are not reused
// while the operation is in flight.
void HoldBlocks(net::SharedHeap* heap, Operation* operation);
// Releases these references. Returns kInvalidArgument, naming the tensor, if one was the last: then the caller has
// freed the tensor during the operation.
Status ReleaseBlocks(Operation* operation);

// For a reduction: returns text with the number and position of this rank's NaN or infinite values; empty if there are
// none.
std::string NonFiniteText(const Operation& operation);
// Sets the signature's defect, if the thread's input has failed (see failed_input.h), or, with `check_finite`, if there
// are such values. Clears that of an earlier operation of the record. kInputFailed for a message of a failed input.
Status NoteDefect(bool check_finite, Operation* operation);

}  // namespace horocache::runtime
