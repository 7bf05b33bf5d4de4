#include "python/torch_gradients/gradients.h"

#include <algorithm>
#include <cstddef>

#include "base/clock.h"
#include "data/kernels/copy.h"
#include "python/bind.h"
#include "python/dlpack_abi.h"
#include "python/tensor_caster.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

// Larger copies are written around the caches: they would not stay in a near cache until they are read. Also the size
// of a batch of gradients that are moved into bucket views. In bytes.
constexpr long long kNearBytes = 256 << 10;

// Interned attribute names.
PyObject* grad_text;
PyObject* version_text;
PyObject* is_neg_text;
PyObject* requires_grad_text;
PyObject* untyped_storage_text;
PyObject* resizable_text;
PyObject* cdata_text;
PyObject* check_delay_text;

GradientSlot* AsSlot(PyObject* object) { return reinterpret_cast<GradientSlot*>(object); }
GradientBucket* AsBucket(PyObject* object) { return reinterpret_cast<GradientBucket*>(object); }
GradientQueue* AsQueue(PyObject* object) { return reinterpret_cast<GradientQueue*>(object); }

bool Has(PyObject* member) { return member != nullptr && member != Py_None; }

// ---- the path of a gradient

// Returns a new reference; null with an error set.
PyObject* Grad(PyObject* param) { return PyObject_GetAttr(param, grad_text); }

// Returns -1 with an error set if the tensor has no version.
long long VersionOf(PyObject* tensor) {
  PyObject* number = PyObject_GetAttr(tensor, version_text);
  if (number == nullptr) return -1;
  const long long version = PyLong_AsLongLong(number);
  Py_DECREF(number);
  return version;
}

// Gets the DLPack description of a tensor from its type's exchange table. Returns false, perhaps with an error set, if
// that fails.
bool Describe(KnownType* known, PyObject* tensor, dlpack::Tensor* out) {
  if (Py_TYPE(tensor) != known->type) {
    known->type = Py_TYPE(tensor);  // no reference: in practice, types live as long as the interpreter
    known->table = FindTable(known->type);
  }
  return known->table != nullptr && known->table->tensor_from_object(tensor, out) == 0;
}

long long AddressOf(const dlpack::Tensor& tensor) {
  return static_cast<long long>(reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset);
}

// Describes the slot's bucket view. Returns true if the view still has the memory that was allocated for it.
bool IsAtPlace(const GradientSlot& slot, dlpack::Tensor* view) {
  if (!Has(slot.view)) return false;
  const bool known = Describe(&AsQueue(slot.queue)->gradients, slot.view, view);
  PyErr_Clear();
  if (!known || AddressOf(*view) != slot.place) return false;
  int64_t bits = view->dtype.bits;
  for (int i = 0; i < view->ndim; ++i) bits *= view->shape[i];
  return bits == slot.bytes * 8;
}

bool IsAtPlace(const GradientSlot& slot) {
  dlpack::Tensor view{};
  return IsAtPlace(slot, &view);
}

// True if shape, strides, element type and device type are equal. Strides of size-1 dimensions are ignored.
bool SameLayout(const dlpack::Tensor& a, const dlpack::Tensor& b) {
  if (a.ndim != b.ndim || a.dtype.code != b.dtype.code || a.dtype.bits != b.dtype.bits) return false;
  if (a.device.type != b.device.type || a.strides == nullptr || b.strides == nullptr) return false;
  for (int i = 0; i < a.ndim; ++i) {
    if (a.shape[i] != b.shape[i] || (a.shape[i] != 1 && a.strides[i] != b.strides[i])) return false;
  }
  return true;
}

// True if the gradient is at its recorded address and has its parameter's shape. Torch's version counter does not count
// changes of address and shape.
bool HasItsMemory(const GradientSlot& slot, PyObject* grad) {
  dlpack::Tensor tensor{}, parameter{};
  GradientQueue* queue = AsQueue(slot.queue);
  return Describe(&queue->gradients, grad, &tensor) && Describe(&queue->parameters, slot.param, &parameter) &&
         AddressOf(tensor) == slot.address && tensor.ndim == parameter.ndim &&
         std::equal(tensor.shape, tensor.shape + tensor.ndim, parameter.shape);
}

// Returns torch's use count of the storage at this address; -1 if it is unknown.
long UsersOf(const GradientQueue& queue, PyObject* storage) {
  PyObject* count = PyObject_CallOneArg(queue.users, storage);
  const long users = count == nullptr ? -1 : PyLong_AsLong(count);
  Py_XDECREF(count);
  PyErr_Clear();  // another version of torch may count in another way
  return users;
}

// True if `answer` is False; false for null, which is a call that failed with an error. Takes the reference.
bool IsNo(PyObject* answer) {
  Py_XDECREF(answer);
  return answer == Py_False;
}

// True if the memory has the gradient's values, not their negatives.
bool IsPlain(PyObject* grad) { return IsNo(PyObject_CallMethodNoArgs(grad, is_neg_text)); }

// True if, besides the caller, the parameter holds the only reference to the gradient and to its storage. False,
// perhaps with an error set, if that is unknown.
bool IsUniquelyReferenced(PyObject* grad, const GradientQueue& queue) {
  if (Py_REFCNT(grad) != queue.references) return false;
  const auto storage = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(grad, untyped_storage_text));
  if (!storage) return false;
  const auto resizable = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(storage.ptr(), resizable_text));
  const auto address = py::reinterpret_steal<py::object>(PyObject_GetAttr(storage.ptr(), cdata_text));
  constexpr long kOwnUsers = 2;  // the gradient and `storage`
  return resizable.ptr() == Py_True && address && UsersOf(queue, address.ptr()) == kOwnUsers;
}

// True if only the slot uses its bucket view. A program may have kept the gradient of an earlier step, whose values
// must then stay.
bool PlaceIsFree(const GradientSlot& slot, const GradientQueue& queue, dlpack::Tensor* view) {
  if (!IsAtPlace(slot, view)) return false;
  if (Py_REFCNT(slot.view) != (slot.view == slot.compact ? 2 : 1)) return false;
  return Has(slot.storage) && UsersOf(queue, slot.storage) == slot.users;
}

// Moves a gradient that autograd has allocated into its bucket view. Returns false, perhaps with an error set, if a
// copy is not enough: a program may have other tensors on the gradient's memory, which must then show the reduced
// values.
bool MoveIntoPlace(GradientSlot* slot, PyObject* param, PyObject* grad) {
  GradientQueue* queue = AsQueue(slot->queue);
  dlpack::Tensor from{}, to{};
  if (!PlaceIsFree(*slot, *queue, &to)) return false;
  if (!Describe(&queue->gradients, grad, &from) || !SameLayout(from, to) || !IsUniquelyReferenced(grad, *queue))
    return false;
  if (!IsPlain(grad) || !IsNo(PyObject_GetAttr(grad, requires_grad_text))) return false;
  data::Copy(static_cast<std::byte*>(to.data) + to.byte_offset,
             static_cast<const std::byte*>(from.data) + from.byte_offset, static_cast<size_t>(slot->bytes),
             slot->bytes >= kNearBytes);
  queue->placed += slot->bytes;
  return PyObject_SetAttr(param, grad_text, slot->view) == 0;
}

// Moves a gradient into its bucket view unless it is there. Returns false with an error set.
bool Place(GradientSlot* slot, PyObject* param) {
  PyObject* grad = Grad(param);
  if (grad == nullptr) return false;
  const bool there = grad == Py_None || (grad == slot->view && IsAtPlace(*slot));
  const bool moved = there || MoveIntoPlace(slot, param, grad);
  Py_DECREF(grad);
  if (moved) return true;
  PyErr_Clear();  // adopt() handles all cases that MoveIntoPlace cannot decide
  PyObject* done = PyObject_CallOneArg(AsQueue(slot->queue)->adopt, reinterpret_cast<PyObject*>(slot));
  Py_XDECREF(done);
  return done != nullptr;
}

// Moves the waiting gradients into their bucket views. After an error the rest stay where they are; returns false with
// the error set.
bool PlaceAll(GradientQueue* queue) {
  if (!Has(queue->unplaced)) return true;
  bool good = true;
  for (Py_ssize_t i = 0; good && i < PyList_GET_SIZE(queue->unplaced); ++i) {
    const auto slot = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(queue->unplaced, i));
    good = Place(AsSlot(slot.ptr()), AsSlot(slot.ptr())->param);
  }
  return PyList_SetSlice(queue->unplaced, 0, PyList_GET_SIZE(queue->unplaced), nullptr) == 0 && good;
}

// Moves a gradient of a group into its bucket view in a batch; see Note [Counting gradients down]. Returns false with
// an error set.
bool PlaceLater(GradientSlot* slot) {
  GradientQueue* queue = AsQueue(slot->queue);
  if (PyList_Append(queue->unplaced, reinterpret_cast<PyObject*>(slot)) != 0) return false;
  if (PyList_GET_SIZE(queue->unplaced) == 1) queue->unplaced_bytes = 0;
  queue->unplaced_bytes += slot->bytes;
  return queue->unplaced_bytes < kNearBytes || PlaceAll(queue);
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
    as_it_is = IsCompact(tensor) && tensor.dtype.code != kComplexCode;
  }
  PyErr_Clear();  // a sparse gradient, for example, has no description
  slot->version = VersionOf(grad);
  slot->irregular = slot->version < 0 || !IsPlain(grad) || !as_it_is;
  return PyErr_Occurred() == nullptr;
}

// Records the gradient as the slot's gradient in flight. Returns false with an error set.
bool Depart(GradientSlot* slot, PyObject* param) {
  PyObject* grad = Grad(param);
  if (grad == nullptr) return false;
  Py_XSETREF(slot->grad, grad);
  slot->irregular = 1;
  slot->address = 0;
  if (grad != slot->view || !IsAtPlace(*slot)) return Inspect(slot, grad);
  slot->address = slot->place;  // a bucket view is compact and not negated
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
bool Hold(GradientSlot* slot, PyObject* param) {
  GradientQueue* queue = AsQueue(slot->queue);
  if (!Depart(slot, param) || PyList_Append(queue->slots, reinterpret_cast<PyObject*>(slot)) != 0) return false;
  queue->bytes += slot->bytes;
  if (queue->bytes >= queue->limit) return Called(queue->send);
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
  const bool later = slot->delay == 1 && AsBucket(slot->bucket)->group;
  if (slot->placed && !(later ? PlaceLater(slot) : Place(slot, param))) return false;
  if (--slot->delay != 0) {
    if (slot->delay > 0) return true;
    PyObject* done = PyObject_CallMethodNoArgs(reinterpret_cast<PyObject*>(slot), check_delay_text);
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
  if (!bucket->group && queue->plain) return Hold(slot, param);
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
  if (PyList_GET_SIZE(slots) > 0 && !PlaceAll(AsQueue(AsSlot(PyList_GET_ITEM(slots, 0))->queue))) return nullptr;
  PyObject* tensors = PyList_New(PyList_GET_SIZE(slots));
  if (tensors == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(slots); ++i) {
    GradientSlot* slot = AsSlot(PyList_GET_ITEM(slots, i));
    PyObject* sent = Depart(slot, slot->param) ? SentFor(*slot) : nullptr;
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
    slot->delay = passes;
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

PyObject* Intern(const char* text) {
  PyObject* object = PyUnicode_InternFromString(text);
  if (object == nullptr) throw py::error_already_set();
  return object;
}

// Returns the reference count of a parameter's gradient, including the caller's reference.
PyObject* GradReferences(PyObject*, PyObject* param) {
  PyObject* grad = Grad(param);
  if (grad == nullptr) return nullptr;
  const Py_ssize_t references = Py_REFCNT(grad);
  Py_DECREF(grad);
  return PyLong_FromSsize_t(references);
}

PyObject* GradIsAlone(PyObject*, PyObject* object) {
  const GradientSlot* slot = AsSlot(object);
  PyObject* grad = Grad(slot->param);
  if (grad == nullptr) return nullptr;
  const bool alone = IsUniquelyReferenced(grad, *AsQueue(slot->queue));
  Py_DECREF(grad);
  PyErr_Clear();  // the gradient may be None or sparse
  return PyBool_FromLong(alone ? 1 : 0);
}

PyObject* PlaceIsFreeForPython(PyObject*, PyObject* slot) {
  dlpack::Tensor view{};
  return PyBool_FromLong(PlaceIsFree(*AsSlot(slot), *AsQueue(AsSlot(slot)->queue), &view) ? 1 : 0);
}

PyObject* IsAtPlaceForPython(PyObject*, PyObject* slot) { return PyBool_FromLong(IsAtPlace(*AsSlot(slot)) ? 1 : 0); }

PyMethodDef functions[] = {{"grad_references", &GradReferences, METH_O, "grad_references(param, /)"},
                           {"grad_is_alone", &GradIsAlone, METH_O, "grad_is_alone(slot, /)"},
                           {"is_at_place", &IsAtPlaceForPython, METH_O, "is_at_place(slot, /)"},
                           {"place_is_free", &PlaceIsFreeForPython, METH_O, "place_is_free(slot, /)"},
                           {"gather_gradients", &Gather, METH_O, "gather_gradients(bucket, /)"},
                           {"rearm_gradients", &RearmAll, METH_VARARGS, "rearm_gradients(buckets, passes, /)"},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyObject* SentFor(const GradientSlot& slot) {
  if (slot.irregular || !Has(slot.grad)) return nullptr;
  return slot.grad == slot.view && slot.address == slot.place ? slot.compact : slot.grad;
}

bool AreUntouched(const GradientBucket& bucket) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(bucket.slots); ++i) {
    const GradientSlot& slot = *AsSlot(PyList_GET_ITEM(bucket.slots, i));
    PyObject* grad = Grad(slot.param);
    const bool same =
        grad != nullptr && grad == slot.grad && VersionOf(grad) == slot.version && HasItsMemory(slot, grad);
    Py_XDECREF(grad);
    PyErr_Clear();
    if (!same) return false;
  }
  return true;
}

void BindGradients(py::module_& module) {
  grad_text = Intern("grad");
  version_text = Intern("_version");
  is_neg_text = Intern("is_neg");
  requires_grad_text = Intern("requires_grad");
  untyped_storage_text = Intern("untyped_storage");
  resizable_text = Intern("resizable");
  cdata_text = Intern("_cdata");
  check_delay_text = Intern("check_delay");
  AddGradientTypes(module, &CallSlot);
  if (PyModule_AddFunctions(module.ptr(), functions) != 0) throw py::error_already_set();
}

}  // namespace horocache::python
