// The path of a gradient from autograd to its submission, without Python bytecode per parameter.
//
// Note [Counting gradients down]
// Each parameter has a slot, which is the parameter's autograd hook: autograd calls it when a backward pass has added
// to the gradient. The slot moves the gradient into its bucket view if it has one, and counts down the backward passes
// of the step. After the last pass the gradient is complete, and the slot counts down its bucket. The last gradient of
// a group calls queue->complete(bucket), which is GradientReducer.submit in Python. A gradient without a group goes
// into the queue, unless it is compressed: then queue->complete(bucket) is called. When the queue has `limit` bytes, or
// the backward pass ends, queue->submit() is called, which is GradientReducer._submit_queued. So Python runs once for
// each group, or for each MiB.
//
// Complete gradients of a group are moved into their bucket views in batches: at 256 KiB, or when the group is
// complete. The calls to torch for each gradient then find warm caches, unlike calls between two operations of a
// backward pass. Gradients on a device are moved at once: autograd has a thread for each device, and a batch belongs to
// the thread of the CPU.
//
// All calls require the GIL. The three structs are Python objects; Python code subclasses them.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "python/torch_gradients/torch_tensor.h"

namespace horocache::python {

// The gradients that are submitted together.
struct GradientBucket {
  PyObject_HEAD;
  Py_ssize_t missing;        // gradients that are not complete
  long long first_ready_ns;  // when the first gradient of a group was complete; 0: none is complete
  char group;                // 1: one operation with a name for each member
  char submitted;
  char direct;       // 1: the last submission had all its gradients as they are
  int priority;      // of the submission
  PyObject* slots;   // a list of GradientSlots
  PyObject* handle;  // of the operation in flight, or None
};

struct GradientQueue;

struct GradientSlot {
  PyObject_HEAD;
  long passes_left;        // backward passes until the gradient is complete
  long long bytes;         // of the gradient
  Py_ssize_t index;        // of the parameter
  char wants_view;         // 1: the gradient belongs in a bucket view
  char moves_at_once;      // 1: it moves there in its hook, not in a batch
  char irregular;          // 1: the gradient cannot be submitted as it is
  PyObject* param;         // the parameter
  PyObject* name;          // as submitted
  PyObject* bucket;        // a GradientBucket, or None
  PyObject* queue;         // a GradientQueue
  PyObject* view;          // the bucket view: a tensor, or None
  long long view_address;  // the view's original address: a program may give the tensor other memory
  PyObject* compact;       // the tensor to submit for the view: its elements, in the order of memory
  PyObject* storage;       // address of the view's storage, for which torch has a use count; or None
  Py_ssize_t users;        // use count of that storage while only the slot uses it
  PyObject* grad;          // the gradient in flight, or None
  long long version;       // version of `grad` when it was complete
  long long address;       // address of its elements then; 0: unknown
};

// Gradients without a group, between their completion and their submission; and the Python functions that slots call.
struct GradientQueue {
  PyObject_HEAD;
  PyObject* slots;           // a list: the queued gradients
  long long bytes;           // of the queued gradients
  long long limit;           // bytes from which on the queue is submitted
  PyObject* unmoved;         // a list: complete gradients of groups, not in their bucket views yet
  long long unmoved_bytes;   // of `unmoved`
  long long moved_bytes;     // copied into bucket views, and not in the metrics yet
  long long pass;            // the backward pass at whose end the queue is submitted; -1: none
  char plain;                // 1: gradients are submitted as they are, not compressed
  PyObject* note;            // note(index): a gradient is complete; None unless the step is measured
  PyObject* submit;          // submit(): submits the queue
  PyObject* begin_pass;      // begin_pass(): the first gradient of a backward pass was queued
  PyObject* complete;        // complete(bucket): all gradients of the bucket are complete
  PyObject* allocate_view;   // allocate_view(slot): gives the slot a new bucket view
  PyObject* pass_under_way;  // pass_under_way() -> int: the current backward pass
  PyObject* users;           // users(storage) -> int: number of tensors on it; None: bucket views are not used
  Py_ssize_t references;     // reference count of a gradient that only its parameter has; depends on torch's version
  KnownType parameters, gradients;
};

// Larger copies are written around the caches: they would not stay in a near cache until they are read. Also the size
// of a batch of gradients that are moved into bucket views. In bytes.
inline constexpr long long kNearBytes = 256 << 10;

inline GradientSlot* AsSlot(PyObject* object) { return reinterpret_cast<GradientSlot*>(object); }
inline GradientBucket* AsBucket(PyObject* object) { return reinterpret_cast<GradientBucket*>(object); }
inline GradientQueue* AsQueue(PyObject* object) { return reinterpret_cast<GradientQueue*>(object); }
inline bool Has(PyObject* member) { return member != nullptr && member != Py_None; }

// Returns the tensor to submit for the slot's gradient in flight, borrowed; null if it cannot be submitted as it is.
PyObject* SentFor(const GradientSlot& slot);

// True if every gradient is the tensor that was submitted, at the same address and with the same version.
bool AreUntouched(const GradientBucket& bucket);

// Adds the three structs to the module as types. `call_slot` is the function that autograd calls.
void AddGradientTypes(pybind11::module_& module, ternaryfunc call_slot);

}  // namespace horocache::python
