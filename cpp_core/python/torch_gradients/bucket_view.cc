#include "python/torch_gradients/bucket_view.h"

#include <cstddef>
#include <cstdint>

#include "data/kernels/copy.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

// Describes the slot's bucket view. Returns true if it is intact.
bool DescribeView(const GradientSlot& slot, dlpack::Tensor* view) {
  if (!Has(slot.view)) return false;
  const bool known = Describe(&AsQueue(slot.queue)->gradients, slot.view, view);
  PyErr_Clear();
  if (!known || AddressOf(*view) != slot.view_address) return false;
  int64_t bits = view->dtype.bits;
  for (int i = 0; i < view->ndim; ++i) bits *= view->shape[i];
  return bits == slot.bytes * 8;
}

// Returns torch's use count of the storage at this address; -1 if it is unknown.
long UsersOf(const GradientQueue& queue, PyObject* storage) {
  PyObject* count = PyObject_CallOneArg(queue.users, storage);
  const long users = count == nullptr ? -1 : PyLong_AsLong(count);
  Py_XDECREF(count);
  PyErr_Clear();  // another version of torch may count in another way
  return users;
}

// True if only the slot uses its bucket view. A program may have kept the gradient of an earlier step, whose values
// must then stay. Requires that the view is intact.
bool OnlyTheSlotUsesTheView(const GradientSlot& slot) {
  if (Py_REFCNT(slot.view) != (slot.view == slot.compact ? 2 : 1)) return false;
  return Has(slot.storage) && UsersOf(*AsQueue(slot.queue), slot.storage) == slot.users;
}

// True if, besides the caller, the parameter holds the only reference to the gradient and to its storage. False,
// perhaps with an error set, if that is unknown.
bool IsUniquelyReferenced(PyObject* grad, const GradientQueue& queue) {
  if (Py_REFCNT(grad) != queue.references) return false;
  const auto storage = py::reinterpret_steal<py::object>(StorageOf(grad));
  if (!storage || !IsResizable(storage.ptr())) return false;
  const auto address = py::reinterpret_steal<py::object>(AddressOfStorage(storage.ptr()));
  constexpr long kOwnUsers = 2;  // the gradient and `storage`
  return address && UsersOf(queue, address.ptr()) == kOwnUsers;
}

// The decision of Note [Whose memory a gradient is in]. Describes a gradient that may move.
bool MayMove(GradientSlot* slot, PyObject* grad, dlpack::Tensor* description) {
  GradientQueue* queue = AsQueue(slot->queue);
  const bool dense = Describe(&queue->gradients, grad, description);
  const bool may_move = dense && IsUniquelyReferenced(grad, *queue) && RequiresNoGrad(grad);
  PyErr_Clear();  // a failed call leaves the answer unknown; the gradient stays then
  if (!dense && IsSparse(grad)) slot->wants_view = 0;  // later gradients of the parameter are sparse, too
  PyErr_Clear();
  return may_move;
}

void DropView(GradientSlot* slot) {
  for (PyObject** member : {&slot->view, &slot->compact, &slot->storage}) Py_XSETREF(*member, Py_NewRef(Py_None));
  slot->view_address = 0;
}

bool AllocateView(GradientSlot* slot) {
  PyObject* done = PyObject_CallOneArg(AsQueue(slot->queue)->allocate_view, reinterpret_cast<PyObject*>(slot));
  Py_XDECREF(done);
  return done != nullptr;
}

// Copies the gradient's values to the bucket view; on a GPU, in the order of torch's current stream. Returns false with
// an error set.
bool Copy(const GradientSlot& slot, PyObject* grad, const dlpack::Tensor& from, const dlpack::Tensor& to) {
  const bool readable = from.device.type == dlpack::kCpu && from.data != nullptr;  // null: it has no memory of its own
  if (!readable || !SameStrides(from, to) || !IsPlain(grad)) {
    PyErr_Clear();
    return CopyValues(slot.view, grad);
  }
  data::Copy(static_cast<std::byte*>(to.data) + to.byte_offset,
             static_cast<const std::byte*>(from.data) + from.byte_offset, static_cast<size_t>(slot.bytes),
             slot.bytes >= kNearBytes);
  return true;
}

}  // namespace

bool ViewIsIntact(const GradientSlot& slot) {
  dlpack::Tensor view{};
  return DescribeView(slot, &view);
}

bool ViewIsFree(const GradientSlot& slot) { return ViewIsIntact(slot) && OnlyTheSlotUsesTheView(slot); }

bool MoveIntoView(GradientSlot* slot, PyObject* param) {
  const auto grad = py::reinterpret_steal<py::object>(GradOf(param));
  if (!grad) return false;
  dlpack::Tensor from{}, to{};
  const bool intact = DescribeView(*slot, &to);
  if (grad.is_none() || (intact && grad.ptr() == slot->view)) return true;
  if (!intact && Has(slot->view)) DropView(slot);
  if (!MayMove(slot, grad.ptr(), &from)) return true;
  if (!intact || !SameKind(from, to) || !OnlyTheSlotUsesTheView(*slot)) {
    if (!AllocateView(slot)) return false;
    // The gradient may have another type than its parameter, or be where it can have no bucket view.
    if (!DescribeView(*slot, &to) || !SameKind(from, to)) {
      slot->wants_view = 0;
      DropView(slot);
      return true;
    }
  }
  if (!Copy(*slot, grad.ptr(), from, to)) return false;
  AsQueue(slot->queue)->moved_bytes += slot->bytes;
  return SetGrad(param, slot->view);
}

}  // namespace horocache::python
