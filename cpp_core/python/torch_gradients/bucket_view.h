// Bucket views: gradients side by side in one block of memory, where they are reduced in place. On the CPU, the ranks
// of a host share this memory. On a GPU, NCCL reduces it without a copy.
//
// Note [Whose memory a gradient is in]
// Autograd allocates a new tensor for a gradient that is None, and adds to an existing gradient. With
// zero_grad(set_to_none=False) a gradient therefore stays in its bucket view, and nothing is copied. Otherwise
// MoveIntoView copies each new gradient into its bucket view, which then becomes the parameter's gradient. In these
// cases the gradient stays where it is:
//
// * Other tensors share its memory. For example, the program has set a view of its own flat buffer as the
//   gradient, and autograd only adds to it; or a hook has kept it.
// * Its memory is not torch's: a NumPy array's, for example.
// * It has a graph of its own (backward(create_graph=True)).
// * It is sparse, has another type than its parameter, or is on a GPU and the program has not asked for bucket views.
//
// In these cases the parameter gets a new bucket view:
//
// * The program has kept the gradient of an earlier step, which is the bucket view. That tensor keeps its values.
// * The program has given the bucket view's tensor other memory, as model.to(dtype) does with gradients.
#pragma once

#include "python/torch_gradients/gradients.h"

namespace horocache::python {

// True if the slot has a bucket view with the memory that was allocated for it.
bool ViewIsIntact(const GradientSlot& slot);
// True if, besides, only the slot uses it.
bool ViewIsFree(const GradientSlot& slot);

// Moves the parameter's gradient into its bucket view if it may; see Note [Whose memory a gradient is in]. Calls the
// queue's allocate_view(slot) if it needs a bucket view. Returns false with an error set.
bool MoveIntoView(GradientSlot* slot, PyObject* param);

}  // namespace horocache::python
