// GradientBucket, GradientSlot and GradientQueue as Python types, whose members Python code reads and writes.
//
// Each type has one table of its members. Members that are objects are visited by the garbage collector.
#include <pybind11/pybind11.h>
#include <structmember.h>  // needs Python.h

#include <array>
#include <cstddef>
#include <string_view>

#include "python/torch_gradients/gradients.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

#define HC_MEMBER(type, object, field, doc) {#field, type, offsetof(object, field), 0, doc}

PyMemberDef bucket_members[] = {
    HC_MEMBER(T_PYSSIZET, GradientBucket, missing, "gradients that are not complete"),
    HC_MEMBER(T_LONGLONG, GradientBucket, first_ready_ns,
              "when the first gradient of a group was complete; 0: none is"),
    HC_MEMBER(T_BOOL, GradientBucket, group, "True: one operation with a name for each member"),
    HC_MEMBER(T_BOOL, GradientBucket, submitted, "True if it has been submitted in this step"),
    HC_MEMBER(T_INT, GradientBucket, priority, "as it is submitted"),
    HC_MEMBER(T_BOOL, GradientBucket, direct, "True if the last submission had all gradients as they are"),
    HC_MEMBER(T_OBJECT, GradientBucket, slots, "its gradients: a list of GradientSlots"),
    HC_MEMBER(T_OBJECT, GradientBucket, handle, "of the operation in flight, or None"),
    {nullptr, 0, 0, 0, nullptr}};

PyMemberDef slot_members[] = {
    HC_MEMBER(T_LONG, GradientSlot, passes_left, "backward passes until the gradient is complete"),
    HC_MEMBER(T_LONGLONG, GradientSlot, bytes, "of the gradient"),
    HC_MEMBER(T_PYSSIZET, GradientSlot, index, "of the parameter"),
    HC_MEMBER(T_BOOL, GradientSlot, wants_view, "True if the gradient belongs in a bucket view"),
    HC_MEMBER(T_BOOL, GradientSlot, moves_at_once, "True if it moves there in its hook, not in a batch"),
    HC_MEMBER(T_BOOL, GradientSlot, irregular, "True if the gradient cannot be submitted as it is"),
    HC_MEMBER(T_OBJECT, GradientSlot, param, "the parameter"),
    HC_MEMBER(T_OBJECT, GradientSlot, name, "as it is submitted"),
    HC_MEMBER(T_OBJECT, GradientSlot, bucket, "a GradientBucket"),
    HC_MEMBER(T_OBJECT, GradientSlot, queue, "a GradientQueue"),
    HC_MEMBER(T_OBJECT, GradientSlot, view, "the bucket view, or None"),
    HC_MEMBER(T_LONGLONG, GradientSlot, view_address, "its original address"),
    HC_MEMBER(T_OBJECT, GradientSlot, compact, "the tensor to submit for the view"),
    HC_MEMBER(T_OBJECT, GradientSlot, storage, "address of the view's storage, or None"),
    HC_MEMBER(T_PYSSIZET, GradientSlot, users, "use count of that storage while only the slot uses it"),
    HC_MEMBER(T_OBJECT, GradientSlot, grad, "the gradient that is in flight, or None"),
    HC_MEMBER(T_LONGLONG, GradientSlot, version, "of that, when it was complete"),
    HC_MEMBER(T_LONGLONG, GradientSlot, address, "of its elements then; 0 if that is not known"),
    {nullptr, 0, 0, 0, nullptr}};

PyMemberDef queue_members[] = {
    HC_MEMBER(T_OBJECT, GradientQueue, slots, "the queued gradients: a list"),
    HC_MEMBER(T_LONGLONG, GradientQueue, bytes, "of these gradients"),
    HC_MEMBER(T_LONGLONG, GradientQueue, limit, "bytes from which on the queue is submitted"),
    HC_MEMBER(T_OBJECT, GradientQueue, unmoved, "complete gradients of groups, not in their bucket views yet: a list"),
    HC_MEMBER(T_LONGLONG, GradientQueue, moved_bytes, "copied into bucket views, and not in the metrics yet"),
    {"pass_", T_LONGLONG, offsetof(GradientQueue, pass), 0,
     "the backward pass at whose end the queue is submitted; -1: none"},
    HC_MEMBER(T_BOOL, GradientQueue, plain, "True if gradients are submitted as they are, not compressed"),
    HC_MEMBER(T_OBJECT, GradientQueue, note, "note(index), in a step that is measured; else None"),
    HC_MEMBER(T_OBJECT, GradientQueue, submit, "submit()"),
    HC_MEMBER(T_OBJECT, GradientQueue, begin_pass, "begin_pass()"),
    HC_MEMBER(T_OBJECT, GradientQueue, complete, "complete(bucket)"),
    HC_MEMBER(T_OBJECT, GradientQueue, allocate_view, "allocate_view(slot)"),
    HC_MEMBER(T_OBJECT, GradientQueue, pass_under_way, "pass_under_way() -> int"),
    HC_MEMBER(T_OBJECT, GradientQueue, users, "users(storage) -> int, or None"),
    HC_MEMBER(T_PYSSIZET, GradientQueue, references, "reference count of a gradient that only its parameter has"),
    {nullptr, 0, 0, 0, nullptr}};

#undef HC_MEMBER

PyObject** Reference(PyObject* self, const PyMemberDef& member) {
  return reinterpret_cast<PyObject**>(reinterpret_cast<std::byte*>(self) + member.offset);
}

template <PyMemberDef* kMembers>
int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  for (const PyMemberDef* member = kMembers; member->name != nullptr; ++member) {
    if (member->type == T_OBJECT) Py_VISIT(*Reference(self, *member));
  }
  return 0;
}

template <PyMemberDef* kMembers>
int Clear(PyObject* self) {
  for (const PyMemberDef* member = kMembers; member->name != nullptr; ++member) {
    if (member->type == T_OBJECT) Py_CLEAR(*Reference(self, *member));
  }
  return 0;
}

template <PyMemberDef* kMembers>
void Dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Clear<kMembers>(self);
  type->tp_free(self);
  Py_DECREF(type);
}

constexpr int kTypeFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC;

template <PyMemberDef* kMembers>
void AddType(py::module_& module, const char* name, size_t size, const char* doc, ternaryfunc call) {
  std::array<PyType_Slot, 8> slots{{{Py_tp_traverse, reinterpret_cast<void*>(&Traverse<kMembers>)},
                                    {Py_tp_clear, reinterpret_cast<void*>(&Clear<kMembers>)},
                                    {Py_tp_dealloc, reinterpret_cast<void*>(&Dealloc<kMembers>)},
                                    {Py_tp_new, reinterpret_cast<void*>(&PyType_GenericNew)},
                                    {Py_tp_members, kMembers},
                                    {Py_tp_doc, const_cast<char*>(doc)}}};
  if (call != nullptr) slots[6] = {Py_tp_call, reinterpret_cast<void*>(call)};
  PyType_Spec spec{name, static_cast<int>(size), 0, kTypeFlags, slots.data()};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  const std::string_view full = name;
  module.attr(name + full.rfind('.') + 1) = py::reinterpret_steal<py::object>(type);
}

}  // namespace

void AddGradientTypes(py::module_& module, ternaryfunc call_slot) {
  AddType<bucket_members>(module, "horocache._core.GradientBucket", sizeof(GradientBucket),
                          "The gradients that are submitted together.", nullptr);
  AddType<slot_members>(module, "horocache._core.GradientSlot", sizeof(GradientSlot),
                        "One parameter's gradient, and the hook that autograd calls.", call_slot);
  AddType<queue_members>(module, "horocache._core.GradientQueue", sizeof(GradientQueue),
                         "Gradients between completion and submission.", nullptr);
}

}  // namespace horocache::python
