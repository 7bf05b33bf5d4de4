// What every binding does to turn its tensors into an operation that can be submitted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/status.h"
#include "net/region_heap.h"
#include "runtime/operation.h"
#include "wire/message.h"

namespace horocache::runtime {

// What ranks compare of tensor `index`, and where it lies. Its output is not known yet. operation->request.signature.op
// and the vectors of tensors are set before.
void DescribeTensor(size_t index, DType dtype, std::span<const int64_t> shape, const std::byte* data,
                    Operation* operation);

// Where the result of tensor `index`, which is described, is to be stored. kInvalidArgument unless that has as many
// elements, of the same type.
Status SetOutput(size_t index, DType dtype, int64_t count, std::byte* data, Operation* operation);

// Gives tensor `index` the name it has when the caller names only the whole: the same, or for a member of a group that
// with its place.
void NameMember(size_t index, bool group, wire::Signature* signature);

// kInvalidArgument if results of a group that is reduced would be stored in the same memory.
Status CheckApart(const Operation& operation);

// Takes the blocks of `heap` that the operation's tensors lie in, so that they are not given back while it is in
// flight.
void HoldBlocks(net::RegionHeap* heap, Operation* operation);
// Lets go of them. kInvalidArgument, naming the tensor, if nobody else holds one: the caller has let go of it before.
Status ReleaseBlocks(Operation* operation);

// For a reduction: how many of this rank's values are NaN or infinite, and where; empty if none are.
std::string NonFiniteText(const Operation& operation);

}  // namespace horocache::runtime
