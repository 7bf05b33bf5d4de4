// What happens to a gradient between autograd and its submission, without a line of Python's bytecode per parameter.
//
// Note [Counting gradients down]
// Each parameter has a slot, which is its own hook: autograd calls it when the gradient is complete. The slot counts
// the backward passes down, puts the gradient into its place in shared memory if it has one, and counts its bucket
// down. The last gradient of a group tells the bucket's owner, in Python; one that travels alone is held in a queue,
// whose owner sends many of them at once. So Python runs once for each group, or for each MiB.
//
// Gradients of a group wait for their places, too, until there are 256 KiB of them or the group is complete: what torch
// has to be asked about each finds warm caches then, which it does not between two operations of a backward pass.
//
// The GIL is held in every call. Python objects, for subclasses to add to.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "python/dlpack_abi.h"

namespace horocache::python {

// The gradients that are submitted together.
struct GradientBucket {
  PyObject_HEAD;
  Py_ssize_t missing;        // gradients that are not complete
  long long first_ready_ns;  // when the first gradient of a group was; 0: none is
  char group;                // one operation with a name for each member
  char submitted;
  char direct;       // all its gradients went as they are, the last time
  int priority;      // as submitted
  PyObject* slots;   // a list of GradientSlots
  PyObject* handle;  // of the operation in flight, or None
};

struct GradientQueue;

// A type of tensors, that of the last one that was looked at, and its exchange table; null: it has none.
struct KnownType {
  PyTypeObject* type;
  const dlpack::ExchangeApi* table;
};

struct GradientSlot {
  PyObject_HEAD;
  long delay;         // backward passes until the gradient is complete
  long long bytes;    // of the gradient
  Py_ssize_t index;   // of the parameter
  char placed;        // the gradient shall lie in shared memory
  char irregular;     // it cannot be sent as it is
  PyObject* param;    // the parameter
  PyObject* name;     // as submitted
  PyObject* bucket;   // a GradientBucket, or None
  PyObject* queue;    // a GradientQueue
  PyObject* view;     // the place in shared memory, or None
  long long place;    // its address: a program may give the tensor other memory
  PyObject* compact;  // the same elements in the order in which they lie there; what is submitted
  PyObject* storage;  // its storage's address, by which torch counts who else uses it; or None
  Py_ssize_t users;   // tensors and the like on that storage while nobody else has one
  PyObject* grad;     // the gradient that is in flight, or None
  long long version;  // of that, when it was complete
  long long address;  // of its elements then; 0 if that is not known
};

// Gradients that travel alone, between their completion and their submission; and what slots call in Python.
struct GradientQueue {
  PyObject_HEAD;
  PyObject* slots;           // a list
  long long bytes;           // of these
  long long limit;           // from which on they are sent
  PyObject* unplaced;        // a list: complete, and not in their places yet
  long long unplaced_bytes;  // of these
  long long placed;          // bytes of gradients that were copied into their places and not counted yet
  long long pass;            // at whose end they are sent in any case; -1: none
  char plain;                // they travel as they are
  PyObject* note;            // note(index): a gradient is complete, in a step that is measured; else None
  PyObject* send;            // send()
  PyObject* begin_pass;      // begin_pass(): a backward pass that the queue does not know of holds the first one
  PyObject* complete;        // complete(bucket)
  PyObject* adopt;           // adopt(slot): puts a gradient into shared memory, or decides that it stays where it is
  PyObject* pass_under_way;  // pass_under_way() -> int
  PyObject* users;           // users(storage) -> int: how many tensors are on it; or None, and nothing is placed
  Py_ssize_t references;  // to a parameter's gradient that nobody else has; what torch itself holds differs by version
  KnownType parameters, gradients;
};

// What is submitted for the slot's gradient in flight; null if that is none that can be sent as it is. Borrowed.
PyObject* SentFor(const GradientSlot& slot);

// Whether all gradients are those that were submitted, where they were, and no version tells of a change.
bool AreUntouched(const GradientBucket& bucket);

// The three as types of the module; `call_slot` is what autograd calls.
void AddGradientTypes(pybind11::module_& module, ternaryfunc call_slot);

}  // namespace horocache::python
