#include "python/gradients.h"

#include <structmember.h>

#include <array>
#include <cstddef>

#include "base/clock.h"
#include "data/kernels/copy.h"
#include "python/bind.h"
#include "python/dlpack_abi.h"
#include "python/tensor_caster.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

// What is larger does not stay in a near cache until it is read.
constexpr size_t kStreamedBytes = 256 << 10;

// Attribute names, made once.
PyObject* grad_text;
PyObject* version_text;
PyObject* is_neg_text;
PyObject* check_delay_text;

GradientSlot* AsSlot(PyObject* object) { return reinterpret_cast<GradientSlot*>(object); }
GradientBucket* AsBucket(PyObject* object) { return reinterpret_cast<GradientBucket*>(object); }
GradientQueue* AsQueue(PyObject* object) { return reinterpret_cast<GradientQueue*>(object); }

bool Has(PyObject* member) { return member != nullptr && member != Py_None; }

// ---- members, common to the three types

template <typename Object, PyObject* Object::*... kMembers>
int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  auto* object = reinterpret_cast<Object*>(self);
  int result = 0;
  const auto visit_one = [&](PyObject* member) {
    if (result == 0 && member != nullptr) result = visit(member, arg);
  };
  (visit_one(object->*kMembers), ...);
  return result;
}

template <typename Object, PyObject* Object::*... kMembers>
int Clear(PyObject* self) {
  auto* object = reinterpret_cast<Object*>(self);
  const auto clear_one = [](PyObject** member) { Py_CLEAR(*member); };
  (clear_one(&(object->*kMembers)), ...);
  return 0;
}

template <typename Object, PyObject* Object::*... kMembers>
void Dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Clear<Object, kMembers...>(self);
  type->tp_free(self);
  Py_DECREF(type);
}

template <typename Object, PyObject* Object::*... kMembers>
std::array<PyType_Slot, 4> MemoryOf() {
  return {{{Py_tp_traverse, reinterpret_cast<void*>(&Traverse<Object, kMembers...>)},
           {Py_tp_clear, reinterpret_cast<void*>(&Clear<Object, kMembers...>)},
           {Py_tp_dealloc, reinterpret_cast<void*>(&Dealloc<Object, kMembers...>)},
           {Py_tp_new, reinterpret_cast<void*>(&PyType_GenericNew)}}};
}

constexpr int kTypeFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC;

// ---- a gradient's way

// New reference; null with an error.
PyObject* Grad(PyObject* param) { return PyObject_GetAttr(param, grad_text); }

// -1 with an error.
long long VersionOf(PyObject* tensor) {
  PyObject* number = PyObject_GetAttr(tensor, version_text);
  if (number == nullptr) return -1;
  const long long version = PyLong_AsLongLong(number);
  Py_DECREF(number);
  return version;
}

// What a tensor's type says about it; false if it says nothing, perhaps with an error.
bool Describe(GradientQueue* queue, PyObject* tensor, dlpack::Tensor* out) {
  if (Py_TYPE(tensor) != queue->type) {
    queue->type = Py_TYPE(tensor);  // types stay for as long as the interpreter, for all practical purposes
    queue->table = FindTable(queue->type);
  }
  return queue->table != nullptr && queue->table->tensor_from_object(tensor, out) == 0;
}

// Steps between elements that are not there do not matter.
bool SameLayout(const dlpack::Tensor& a, const dlpack::Tensor& b) {
  if (a.ndim != b.ndim || a.dtype.code != b.dtype.code || a.dtype.bits != b.dtype.bits) return false;
  if (a.device.type != b.device.type || a.strides == nullptr || b.strides == nullptr) return false;
  for (int i = 0; i < a.ndim; ++i) {
    if (a.shape[i] != b.shape[i] || (a.shape[i] != 1 && a.strides[i] != b.strides[i])) return false;
  }
  return true;
}

// Whether nobody but the slot has the place: who kept the gradient of an earlier step shall keep its values.
bool PlaceIsFree(const GradientSlot& slot, const GradientQueue& queue) {
  if (Py_REFCNT(slot.view) != (slot.view == slot.compact ? 2 : 1)) return false;
  if (!Has(queue.users) || !Has(slot.storage)) return true;
  PyObject* count = PyObject_CallOneArg(queue.users, slot.storage);
  if (count == nullptr) {
    PyErr_Clear();  // a torch that counts in another way: then nobody can tell
    return false;
  }
  const long users = PyLong_AsLong(count);
  Py_DECREF(count);
  return users == slot.users;
}

// Copies a gradient that autograd has just made into its place, if that is all there is to do; false if it is not.
bool MoveIntoPlace(GradientSlot* slot, PyObject* param, PyObject* grad) {
  GradientQueue* queue = AsQueue(slot->queue);
  if (!Has(slot->view) || Py_REFCNT(grad) != queue->references || VersionOf(grad) != 0) return false;
  if (!PlaceIsFree(*slot, *queue)) return false;
  dlpack::Tensor from{}, to{};
  if (!Describe(queue, grad, &from) || !Describe(queue, slot->view, &to) || !SameLayout(from, to)) return false;
  PyObject* negative = PyObject_CallMethodNoArgs(grad, is_neg_text);
  Py_XDECREF(negative);
  if (negative != Py_False) return false;
  const auto bytes = static_cast<size_t>(slot->bytes);
  data::Copy(static_cast<std::byte*>(to.data) + to.byte_offset,
             static_cast<const std::byte*>(from.data) + from.byte_offset, bytes, bytes >= kStreamedBytes);
  queue->placed += slot->bytes;
  return PyObject_SetAttr(param, grad_text, slot->view) == 0;
}

// Puts the gradient into shared memory, if it shall lie there and does not. False with an error.
bool Place(GradientSlot* slot, PyObject* param) {
  PyObject* grad = Grad(param);
  if (grad == nullptr) return false;
  const bool there = grad == slot->view || grad == Py_None;
  const bool moved = there || MoveIntoPlace(slot, param, grad);
  Py_DECREF(grad);
  if (moved) return true;
  PyErr_Clear();  // whatever it could not find out
  PyObject* done = PyObject_CallOneArg(AsQueue(slot->queue)->adopt, reinterpret_cast<PyObject*>(slot));
  Py_XDECREF(done);
  return done != nullptr;
}

// Notes the gradient as the one that is in flight. False with an error.
bool Depart(GradientSlot* slot, PyObject* param) {
  PyObject* grad = Grad(param);
  if (grad == nullptr) return false;
  Py_XSETREF(slot->grad, grad);
  slot->irregular = 1;
  if (grad == Py_None) return true;  // another hook has taken it away
  slot->version = VersionOf(grad);
  PyObject* negative = slot->version < 0 ? nullptr : PyObject_CallMethodNoArgs(grad, is_neg_text);
  if (negative == nullptr) return false;
  slot->irregular = negative != Py_False;
  Py_DECREF(negative);
  return true;
}

bool Called(PyObject* callable) {
  PyObject* done = PyObject_CallNoArgs(callable);
  Py_XDECREF(done);
  return done != nullptr;
}

// A gradient that travels alone is complete.
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

// False with an error.
bool OnGradient(GradientSlot* slot, PyObject* param) {
  if (slot->placed && !Place(slot, param)) return false;
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

// The gradients that are complete, for a group.
PyObject* Gather(PyObject*, PyObject* slots) {
  if (!PyList_Check(slots)) return PyErr_Format(PyExc_TypeError, "gather_gradients takes a list");
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
  return tensors;
}

// ---- the types

template <typename Slots, typename Members>
PyObject* MakeType(const char* name, size_t size, const char* doc, Slots memory, Members members,
                   ternaryfunc call = nullptr) {
  std::array<PyType_Slot, 8> slots{};
  size_t used = 0;
  for (const PyType_Slot& slot : memory) slots[used++] = slot;
  slots[used++] = {Py_tp_members, members};
  slots[used++] = {Py_tp_doc, const_cast<char*>(doc)};
  if (call != nullptr) slots[used++] = {Py_tp_call, reinterpret_cast<void*>(call)};
  PyType_Spec spec{name, static_cast<int>(size), 0, kTypeFlags, slots.data()};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  return type;
}

#define HC_MEMBER(type, object, field, doc) {#field, type, offsetof(object, field), 0, doc}

PyMemberDef bucket_members[] = {
    HC_MEMBER(T_PYSSIZET, GradientBucket, missing, "gradients that are not complete"),
    HC_MEMBER(T_LONGLONG, GradientBucket, first_ready_ns, "when the first one of a group was; 0: none is"),
    HC_MEMBER(T_BOOL, GradientBucket, group, "whether it is one operation with a name for each member"),
    HC_MEMBER(T_BOOL, GradientBucket, submitted, "whether it has been submitted in this step"),
    HC_MEMBER(T_INT, GradientBucket, priority, "as it is submitted"),
    HC_MEMBER(T_OBJECT, GradientBucket, handle, "of the operation in flight, or None"),
    {nullptr, 0, 0, 0, nullptr}};

PyMemberDef slot_members[] = {
    HC_MEMBER(T_LONG, GradientSlot, delay, "backward passes until the gradient is complete"),
    HC_MEMBER(T_LONGLONG, GradientSlot, bytes, "of the gradient"),
    HC_MEMBER(T_PYSSIZET, GradientSlot, index, "of the parameter"),
    HC_MEMBER(T_BOOL, GradientSlot, placed, "whether the gradient shall lie in shared memory"),
    HC_MEMBER(T_BOOL, GradientSlot, irregular, "whether the gradient cannot be sent as it is"),
    HC_MEMBER(T_OBJECT, GradientSlot, param, "the parameter"),
    HC_MEMBER(T_OBJECT, GradientSlot, name, "as it is submitted"),
    HC_MEMBER(T_OBJECT, GradientSlot, bucket, "a GradientBucket"),
    HC_MEMBER(T_OBJECT, GradientSlot, queue, "a GradientQueue"),
    HC_MEMBER(T_OBJECT, GradientSlot, view, "the place in shared memory, or None"),
    HC_MEMBER(T_OBJECT, GradientSlot, compact, "its elements in the order in which they lie there"),
    HC_MEMBER(T_OBJECT, GradientSlot, storage, "address of the place's storage, or None"),
    HC_MEMBER(T_PYSSIZET, GradientSlot, users, "of that storage, while nobody else has one"),
    HC_MEMBER(T_OBJECT, GradientSlot, grad, "the gradient that is in flight, or None"),
    HC_MEMBER(T_LONGLONG, GradientSlot, version, "of that, when it was complete"),
    {nullptr, 0, 0, 0, nullptr}};

PyMemberDef queue_members[] = {
    HC_MEMBER(T_OBJECT, GradientQueue, slots, "what is held: a list"),
    HC_MEMBER(T_LONGLONG, GradientQueue, bytes, "of these gradients"),
    HC_MEMBER(T_LONGLONG, GradientQueue, limit, "from which on they are sent"),
    HC_MEMBER(T_LONGLONG, GradientQueue, placed, "bytes that were copied into places and not counted yet"),
    {"pass_", T_LONGLONG, offsetof(GradientQueue, pass), 0, "the backward pass at whose end they are sent; -1: none"},
    HC_MEMBER(T_BOOL, GradientQueue, plain, "whether gradients travel as they are"),
    HC_MEMBER(T_OBJECT, GradientQueue, note, "note(index), in a step that is measured; else None"),
    HC_MEMBER(T_OBJECT, GradientQueue, send, "send()"),
    HC_MEMBER(T_OBJECT, GradientQueue, begin_pass, "begin_pass()"),
    HC_MEMBER(T_OBJECT, GradientQueue, complete, "complete(bucket)"),
    HC_MEMBER(T_OBJECT, GradientQueue, adopt, "adopt(slot)"),
    HC_MEMBER(T_OBJECT, GradientQueue, pass_under_way, "pass_under_way() -> int"),
    HC_MEMBER(T_OBJECT, GradientQueue, users, "users(storage) -> int, or None"),
    HC_MEMBER(T_PYSSIZET, GradientQueue, references, "to a gradient that nobody else has"),
    {nullptr, 0, 0, 0, nullptr}};

#undef HC_MEMBER

PyObject* Intern(const char* text) {
  PyObject* object = PyUnicode_InternFromString(text);
  if (object == nullptr) throw py::error_already_set();
  return object;
}

void Add(py::module_& module, const char* name, PyObject* type) {
  module.attr(name) = py::reinterpret_steal<py::object>(type);
}

// References to a parameter's gradient, that of the caller included.
PyObject* GradReferences(PyObject*, PyObject* param) {
  PyObject* grad = Grad(param);
  if (grad == nullptr) return nullptr;
  const Py_ssize_t references = Py_REFCNT(grad);
  Py_DECREF(grad);
  return PyLong_FromSsize_t(references);
}

PyObject* PlaceIsFreeForPython(PyObject*, PyObject* slot) {
  return PyBool_FromLong(PlaceIsFree(*AsSlot(slot), *AsQueue(AsSlot(slot)->queue)) ? 1 : 0);
}

PyMethodDef functions[] = {{"grad_references", &GradReferences, METH_O, "grad_references(param, /)"},
                           {"place_is_free", &PlaceIsFreeForPython, METH_O, "place_is_free(slot, /)"},
                           {"gather_gradients", &Gather, METH_O, "gather_gradients(slots, /)"},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyObject* SentFor(const GradientSlot& slot) {
  if (slot.irregular || !Has(slot.grad)) return nullptr;
  if (slot.grad == slot.view) return slot.compact;
  dlpack::Tensor tensor{};
  // Complex numbers in memory may be the conjugates of a tensor's, which torch has to be asked.
  constexpr int kComplexCode = 5;
  const bool good =
      Describe(AsQueue(slot.queue), slot.grad, &tensor) && IsCompact(tensor) && tensor.dtype.code != kComplexCode;
  PyErr_Clear();  // a sparse one, say
  return good ? slot.grad : nullptr;
}

void BindGradients(py::module_& module) {
  grad_text = Intern("grad");
  version_text = Intern("_version");
  is_neg_text = Intern("is_neg");
  check_delay_text = Intern("check_delay");
  using B = GradientBucket;
  using S = GradientSlot;
  using Q = GradientQueue;
  if (PyModule_AddFunctions(module.ptr(), functions) != 0) throw py::error_already_set();
  Add(module, "GradientBucket",
      MakeType("horocache._core.GradientBucket", sizeof(B), "The gradients that are submitted together.",
               MemoryOf<B, &B::handle>(), bucket_members));
  Add(module, "GradientSlot",
      MakeType("horocache._core.GradientSlot", sizeof(S), "One parameter's gradient, and the hook that autograd calls.",
               MemoryOf<S, &S::param, &S::name, &S::bucket, &S::queue, &S::view, &S::compact, &S::storage, &S::grad>(),
               slot_members, &CallSlot));
  Add(module, "GradientQueue",
      MakeType("horocache._core.GradientQueue", sizeof(Q), "Gradients between completion and submission.",
               MemoryOf<Q, &Q::slots, &Q::note, &Q::send, &Q::begin_pass, &Q::complete, &Q::adopt, &Q::pass_under_way,
                        &Q::users>(),
               queue_members));
}

}  // namespace horocache::python
