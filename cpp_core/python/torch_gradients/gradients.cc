#include "python/torch_gradients/gradients.h"

#include <algorithm>
#include <cstddef>

#include "base/clock.h"
#include "data/backends/nccl/flat_array.h"
#include "python/bind.h"
#include "python/tensor_caster.h"
#include "python/torch_gradients/bucket_view.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

// An interned attribute name.
PyObject* too_many_passes_text;

// True if the gradient is at its recorded address and has its parameter's shape. Torch's version counter does not count
// changes of address and shape.
bool HasItsMemory(const GradientSlot& slot, PyObject* grad) {
  dlpack::Tensor tensor{}, parameter{};
  GradientQueue* queue = AsQueue(slot.queue);
  return Describe(&queue->gradients, grad, &tensor) && Describe(&queue->parameters, slot.param, &parameter) &&
         AddressOf(tensor) == slot.address && tensor.ndim == parameter.ndim &&
         std::equal(tensor.shape, tensor.shape + tensor.ndim, parameter.shape);
}

// Moves the waiting gradients into their bucket views. After an error the rest stay where they are; returns false with
// the error set.
bool MoveAll(GradientQueue* queue) {
  if (!Has(queue->unmoved)) return true;
  bool good = true;
  for (Py_ssize_t i = 0; good && i < PyList_GET_SIZE(queue->unmoved); ++i) {
    const auto slot = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(queue->unmoved, i));
    good = MoveIntoView(AsSlot(slot.ptr()), AsSlot(slot.ptr())->param);
  }
  return PyList_SetSlice(queue->unmoved, 0, PyList_GET_SIZE(queue->unmoved), nullptr) == 0 && good;
}

// Moves a gradient of a group into its bucket view in a batch; see Note [Counting gradients down]. Returns false with
// an error set.
bool MoveLater(GradientSlot* slot) {
  GradientQueue* queue = AsQueue(slot->queue);
  if (PyList_Append(queue->unmoved, reinterpret_cast<PyObject*>(slot)) != 0) return false;
  if (PyList_GET_SIZE(queue->unmoved) == 1) queue->unmoved_bytes = 0;
  queue->unmoved_bytes += slot->bytes;
  return queue->unmoved_bytes < kNearBytes || MoveAll(queue);
}

// Determines if a gradient outside of its bucket view can be submitted as it is. Returns false with an error set.
bool Inspect(GradientSlot* slot, PyObject* grad) {
  if (grad == Py_None) return true;  // another hook has removed it
  // The memory of a complex tensor may hold the conjugates of its values; only torch knows.
  constexpr int kComplexCode = 5;
  dlpack::Tensor tensor{};
  bool as_it_is = false;
  if (Describe(&AsQueue(slot->queue)->gradients, grad, &tensor)) {
    slot->address = AddressOf(tensor);
    as_it_is = tensor.data != nullptr && IsCompact(tensor) && tensor.dtype.code != kComplexCode;
  }
  PyErr_Clear();  // a sparse gradient, for example, has no description
  slot->version = VersionOf(grad);
  slot->irregular = slot->version < 0 || !IsPlain(grad) || !as_it_is;
  return PyErr_Occurred() == nullptr;
}

// Records the gradient as the slot's gradient in flight. Returns false with an error set.
bool RecordSubmitted(GradientSlot* slot, PyObject* param) {
  PyObject* grad = GradOf(param);
  if (grad == nullptr) return false;
  Py_XSETREF(slot->grad, grad);
  slot->irregular = 1;
  slot->address = 0;
  if (grad != slot->view || !ViewIsIntact(*slot)) return Inspect(slot, grad);
  slot->address = slot->view_address;  // a bucket view is compact and not negated
  slot->version = VersionOf(grad);
  slot->irregular = 0;
  return slot->version >= 0;
}

bool Called(PyObject* callable) {
  PyObject* done = PyObject_CallNoArgs(callable);
  Py_XDECREF(done);
  return done != nullptr;
}

// Queues a complete gradient without a group. Returns false with an error set.
bool Enqueue(GradientSlot* slot, PyObject* param) {
  GradientQueue* queue = AsQueue(slot->queue);
  if (!RecordSubmitted(slot, param) || PyList_Append(queue->slots, reinterpret_cast<PyObject*>(slot)) != 0)
    return false;
  queue->bytes += slot->bytes;
  if (queue->bytes >= queue->limit) return Called(queue->submit);
  PyObject* number = PyObject_CallNoArgs(queue->pass_under_way);
  if (number == nullptr) return false;
  const long long pass = PyLong_AsLongLong(number);
  Py_DECREF(number);
  return pass == queue->pass || Called(queue->begin_pass);
}

bool Note(PyObject* note, Py_ssize_t index) {
  PyObject* done = PyObject_CallFunction(note, "n", index);
  Py_XDECREF(done);
  return done != nullptr;
}

// Handles one call of a parameter's hook. Returns false with an error set.
bool OnGradient(GradientSlot* slot, PyObject* param) {
  const bool later = slot->passes_left == 1 && AsBucket(slot->bucket)->group && !slot->moves_at_once;
  if (slot->wants_view && !(later ? MoveLater(slot) : MoveIntoView(slot, param))) return false;
  if (--slot->passes_left != 0) {
    if (slot->passes_left > 0) return true;
    PyObject* done = PyObject_CallMethodNoArgs(reinterpret_cast<PyObject*>(slot), too_many_passes_text);
    Py_XDECREF(done);
    return done != nullptr;
  }
  GradientQueue* queue = AsQueue(slot->queue);
  GradientBucket* bucket = AsBucket(slot->bucket);
  if (Has(queue->note) && !Note(queue->note, slot->index)) return false;
  if (--bucket->missing > 0) {
    if (bucket->first_ready_ns == 0) bucket->first_ready_ns = NowNs();
    return true;
  }
  if (!bucket->group && queue->plain) return Enqueue(slot, param);
  PyObject* done = PyObject_CallOneArg(queue->complete, slot->bucket);
  Py_XDECREF(done);
  return done != nullptr;
}

PyObject* CallSlot(PyObject* self, PyObject* arguments, PyObject*) {
  if (PyTuple_GET_SIZE(arguments) != 1) return PyErr_Format(PyExc_TypeError, "a gradient's slot takes its parameter");
  if (!Has(AsSlot(self)->queue) || !Has(AsSlot(self)->bucket))
    return PyErr_Format(PyExc_RuntimeError, "a gradient's slot that is in no bucket was called");
  if (!OnGradient(AsSlot(self), PyTuple_GET_ITEM(arguments, 0))) return nullptr;
  Py_RETURN_NONE;
}

bool HasSlots(const GradientBucket& bucket) { return bucket.slots != nullptr && PyList_Check(bucket.slots); }

// Returns the tensors to submit for a complete bucket, or None if a gradient cannot be submitted as it is.
PyObject* Gather(PyObject*, PyObject* object) {
  GradientBucket* bucket = AsBucket(object);
  PyObject* slots = bucket->slots;
  bucket->direct = 0;
  if (!HasSlots(*bucket)) return PyErr_Format(PyExc_TypeError, "a bucket's slots are a list");
  const GradientSlot* first = PyList_GET_SIZE(slots) > 0 ? AsSlot(PyList_GET_ITEM(slots, 0)) : nullptr;
  if (first != nullptr && !first->moves_at_once && !MoveAll(AsQueue(first->queue))) return nullptr;
  PyObject* tensors = PyList_New(PyList_GET_SIZE(slots));
  if (tensors == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(slots); ++i) {
    GradientSlot* slot = AsSlot(PyList_GET_ITEM(slots, i));
    PyObject* sent = RecordSubmitted(slot, slot->param) ? SentFor(*slot) : nullptr;
    if (sent == nullptr) {
      Py_DECREF(tensors);
      if (PyErr_Occurred() != nullptr) return nullptr;
      Py_RETURN_NONE;
    }
    Py_INCREF(sent);
    PyList_SET_ITEM(tensors, i, sent);
  }
  bucket->direct = 1;
  return tensors;
}

void Rearm(GradientBucket* bucket, long passes) {
  Py_INCREF(Py_None);
  Py_XSETREF(bucket->handle, Py_None);
  bucket->submitted = 0;
  bucket->first_ready_ns = 0;
  bucket->missing = PyList_GET_SIZE(bucket->slots);
  for (Py_ssize_t i = 0; i < bucket->missing; ++i) {
    GradientSlot* slot = AsSlot(PyList_GET_ITEM(bucket->slots, i));
    slot->passes_left = passes;
    Py_INCREF(Py_None);
    Py_XSETREF(slot->grad, Py_None);
  }
}

PyObject* RearmAll(PyObject*, PyObject* arguments) {
  PyObject* buckets = nullptr;
  long passes = 0;
  if (PyArg_ParseTuple(arguments, "O!l", &PyList_Type, &buckets, &passes) == 0) return nullptr;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(buckets); ++i) {
    GradientBucket* bucket = AsBucket(PyList_GET_ITEM(buckets, i));
    if (!HasSlots(*bucket)) return PyErr_Format(PyExc_TypeError, "a bucket's slots are a list");
    Rearm(bucket, passes);
  }
  Py_RETURN_NONE;
}

// Returns the reference count of a parameter's gradient, including the caller's reference.
PyObject* GradReferences(PyObject*, PyObject* param) {
  PyObject* grad = GradOf(param);
  if (grad == nullptr) return nullptr;
  const Py_ssize_t references = Py_REFCNT(grad);
  Py_DECREF(grad);
  return PyLong_FromSsize_t(references);
}

PyObject* ViewIsIntactForPython(PyObject*, PyObject* slot) {
  return PyBool_FromLong(ViewIsIntact(*AsSlot(slot)) ? 1 : 0);
}

PyObject* ViewIsFreeForPython(PyObject*, PyObject* slot) { return PyBool_FromLong(ViewIsFree(*AsSlot(slot)) ? 1 : 0); }

// See BucketViews in framework_bindings/torch/optimizer/bucket_views.py.
PyObject* FlatPartForPython(PyObject*, PyObject* bytes) {
  const long long number = PyLong_AsLongLong(bytes);
  if (number == -1 && PyErr_Occurred() != nullptr) return nullptr;
  return PyLong_FromLong(static_cast<long>(data::FlatPartOf(number)));
}

PyMethodDef functions[] = {{"flat_part", &FlatPartForPython, METH_O, "flat_part(bytes, /)"},
                           {"grad_references", &GradReferences, METH_O, "grad_references(param, /)"},
                           {"view_is_intact", &ViewIsIntactForPython, METH_O, "view_is_intact(slot, /)"},
                           {"view_is_free", &ViewIsFreeForPython, METH_O, "view_is_free(slot, /)"},
                           {"gather_gradients", &Gather, METH_O, "gather_gradients(bucket, /)"},
                           {"rearm_gradients", &RearmAll, METH_VARARGS, "rearm_gradients(buckets, passes, /)"},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyObject* SentFor(const GradientSlot& slot) {
  if (slot.irregular || !Has(slot.grad)) return nullptr;
  return slot.grad == slot.view && slot.address == slot.view_address ? slot.compact : slot.grad;
}

bool AreUntouched(const GradientBucket& bucket) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bucket.slots); ++i) {
    const GradientSlot& slot = *AsSlot(PyList_GET_ITEM(bucket.slots, i));
    PyObject* grad = GradOf(slot.param);
    const bool same =
        grad != nullptr && grad == slot.grad && VersionOf(grad) == slot.version && HasItsMemory(slot, grad);
    Py_XDECREF(grad);
    PyErr_Clear();
    if (!same) return false;
  }
  return true;
}

void BindGradients(py::module_& module) {
  InternNamesOfTensors();
  too_many_passes_text = PyUnicode_InternFromString("raise_too_many_passes");
  if (too_many_passes_text == nullptr) throw py::error_already_set();
  AddGradientTypes(module, &CallSlot);
  if (PyModule_AddFunctions(module.ptr(), functions) != 0) throw py::error_already_set();
}

}  // namespace horocache::python
