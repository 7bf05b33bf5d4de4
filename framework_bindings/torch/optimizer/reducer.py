"""Submits gradients while the backward pass runs, and stores the reduced gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import torch
from horocache import _core
from horocache.base.operation_codes import OP_ALLREDUCE
from horocache.base.request import Request
from horocache.collectives.api import set_id, synchronize
from horocache.collectives.compression import Codec, is_cast, is_codec
from horocache.collectives.encoded_sum import EncodedCall
from horocache.collectives.transforms import LoggingLayer, layer_list
from horocache.core import context
from horocache.data_parallel.bucketing import group_count, split_by_bytes, split_by_count
from horocache.data_parallel.options import GradientOptions
from horocache.errors import HorocacheError, InvalidArgumentError, UnsupportedError

from ..adapter import can_be_sent, collectives
from ..compile.dynamo import outside
from ..sparse_allreduce import sparse_allreduce_async
from .bucket import Bucket, Slot, fixed_buckets, is_lazy, no_gradient, of_one_kind, prioritize
from .bucket_views import BucketView, BucketViews
from .debug_state import BucketState, DebugState, GradientState
from .gradient_queue import GradientQueue
from .other_optimizers import check_no_conflict
from .ready_order import Orders, ReadyOrder, assumed_orders
from .tuned_groups import TunedGroups
from .unused_parameters import UnusedParameters


class GradientReducer:
    """Reduces the gradients of one optimizer between the backward pass and the step.

    A hook on each parameter counts backward passes; the hook is the parameter's slot (``OnGradient`` in
    ``cpp_core/python/torch_gradients/gradients.cc``). When the last gradient of a bucket is complete, the bucket is
    submitted as one operation, in place on the gradients unless they need another layout or element type.
    ``synchronize`` submits the buckets that no hook submitted, and waits for all. For a parameter that this rank's loss
    did not use, it sends zeros. For example, with parameters a and b in one bucket and two backward passes per step,
    the bucket is submitted in the second pass, when both a and b are complete; if the loss does not use b,
    ``synchronize`` submits a with zeros for b.

    See Note [Unused parameters] for parameters that no rank's loss used, and Note [Kinds of missing gradients].

    Role: owned by the optimizer; used by the thread that runs backward and step.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, torch.Tensor]],
        options: GradientOptions,
        bucket_view: BucketView = "auto",
        unused_as_zeros: bool = False,
    ) -> None:
        self.options = options
        self._codec = options.compression if is_codec(options.compression) else None
        layers = layer_list(None if self._codec else options.compression, False)
        self.process_set = set_id(options.process_set)
        self._op, self._prescale, self._postscale = options.op, options.prescale, options.postscale
        self._layers = layers.signature
        self.bucket_view, self.unused_as_zeros = bucket_view, unused_as_zeros
        self.plain = not layers.signature and self._codec is None
        self._log = LoggingLayer()
        self._cast = is_cast(options.compression)
        self._converts = not (self.plain or self._cast or self._codec)  # by a user's compressor
        self.passes = options.passes
        self._slots: list[Slot] = []
        self._buckets: list[Bucket] = []
        self._in_flight: list[Bucket] = []
        self.queue = GradientQueue(self.plain, self._submit_queued, self.submit, self._allocate_view)
        self._views = BucketViews(bucket_view, self.plain)
        self._frozen: list[tuple[str, torch.Tensor]] = []
        self._has_loose = False  # True if parameters were added that are in no bucket of _make_buckets() yet
        self._fixed_groups = options.groups
        grouped = options.num_groups != 0 or bool(options.groups)
        self.order = ReadyOrder(grouped, options.process_set)
        self.label = ""  # describes the optimizer in errors
        self.changes = 0  # number of hooks added so far
        # Reducers found not to contend with this one, with `changes` of both at the time of that check.
        self.checked_against: weakref.WeakKeyDictionary[GradientReducer, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._unused = None if unused_as_zeros else UnusedParameters(self.process_set)
        self._failure: Exception | None = None  # the first failure of this step
        self._num_groups = options.num_groups
        self._orders: Orders | None = None  # measured
        self.tuned_groups: TunedGroups | None = None  # set by the optimizer if autotune changes the number of groups
        self._hooks: list[Any] = []
        weakref.finalize(self, _remove_hooks, self._hooks)
        self.add(named)

    # ---- parameters and buckets

    @property
    def parts(self) -> Sequence[GradientReducer]:
        """The reducers that share the optimizer's parameters among them: this one."""
        return (self,)

    def add(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Add parameters and rebuild the buckets; the next step measures the ready order.

        A frozen parameter gets its hook in the first :meth:`synchronize` after it has become trainable.
        """
        _check_devices(named)
        for name, param in named:
            if param.requires_grad:
                self._hook(name, param)
            else:
                self._frozen.append((name, param))
        self._orders = None
        self._make_buckets(assumed_orders(len(self._slots)))
        if self._unused is not None:
            self._unused.expect(self._slots)
        self.order.measure()
        self.queue.note = self.order.note if self.order.measures else None
        self._mark_views()

    def parameters(self) -> dict[torch.Tensor, str]:
        """Return all parameters, including frozen ones, with their names."""
        return {**{slot.param: slot.name for slot in self._slots}, **{param: name for name, param in self._frozen}}

    def debug_state(self) -> DebugState:
        """Return a description of the buckets."""
        buckets = []
        for bucket in self._buckets:
            gradients = [GradientState(slot.name, slot.param, slot.view) for slot in bucket.slots]
            buckets.append(BucketState(tuple(gradients), bucket.priority))
        return DebugState(tuple(buckets), tuple(name for name, _ in self._frozen))

    def add_parameters(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Add parameters while gradients may be in flight.

        Each has its own bucket until :meth:`retain_parameters` is called.
        """
        for name, param in named:
            if param.requires_grad:
                slot = self._hook(name, param)
                self._has_loose = True
                self._buckets.append(Bucket([slot], False))
                self._views.mark(slot, settled=True)
            else:
                self._frozen.append((name, param))

    def retain_parameters(self, present: Collection[torch.Tensor]) -> None:
        """Drop all parameters except ``present`` and rebuild the buckets; the next step measures the ready order.

        Does nothing if no trainable parameter comes or goes: ranks may change their own experts only. Must be called
        between two steps.
        """
        self._frozen = [(name, param) for name, param in self._frozen if param in present]
        slots, hooks = self._slots, list(self._hooks)
        if not self._has_loose and all(slot.param in present for slot in slots):
            return
        self._has_loose = False
        self._slots = [slot for slot in slots if slot.param in present]
        self._hooks[:] = [hook for slot, hook in zip(slots, hooks, strict=True) if slot.param in present]
        gone = [(slot, hook) for slot, hook in zip(slots, hooks, strict=True) if slot.param not in present]
        _remove_hooks([hook for _, hook in gone])
        for slot, _ in gone:
            self._forget_residuals(slot.name)
        for index, slot in enumerate(self._slots):
            slot.index = index
        self.add([])

    def _hook(self, name: str, param: torch.Tensor) -> Slot:
        self.changes += 1
        slot = Slot(len(self._slots), name, param, self.passes, self.queue)
        self._slots.append(slot)
        self._hooks.append(cast(Any, param).register_post_accumulate_grad_hook(slot))
        return slot

    def _mark_views(self) -> None:
        for slot in self._slots:
            if slot.view is None:
                self._views.mark(slot, settled=not self.order.measures)

    def _allocate_view(self, slot: Slot) -> None:
        # The program may have moved the parameter since.
        self._views.mark(slot, settled=not self.order.measures)
        if slot.wants_view:
            self._views.allocate(slot, self._buckets)

    def _make_buckets(self, orders: Orders) -> None:
        order = orders.ready
        sizes = [slot.param.numel() * slot.param.element_size() for slot in self._slots]
        wanted = group_count(self._num_groups, sizes)
        if self._fixed_groups is not None:
            self._buckets = fixed_buckets(self._fixed_groups, self._slots)
        elif wanted == 0:
            self._buckets = [Bucket([slot], False) for slot in self._slots]
        else:
            by_count = context.current().runtime.knobs()["group_by"][0] == "count"
            runs = split_by_count(order, wanted) if by_count else split_by_bytes(order, sizes, wanted)
            self._buckets = [bucket for run in runs for bucket in of_one_kind([self._slots[i] for i in run])]
        if self.order.wanted:
            prioritize(self._buckets, orders.used)

    def _start_order(self) -> None:
        try:
            self.order.start([slot.name for slot in self._slots])
        except Exception as error:
            self._failure = self._failure or error
        self.queue.note = None

    def _finish_order(self) -> Orders | None:
        try:
            return self.order.finish()
        except Exception as error:
            self._failure = self._failure or error
            return None

    # ---- the backward pass

    def _submit_queued(self) -> None:
        """Submit the queued gradients, each under its own name.

        Raises:
            HorocacheError: a gradient could not be submitted; synchronize submits those after it.
            DuplicateNameError: another optimizer contends for a parameter or a name.
        """
        check_no_conflict(self)
        session = context.current()
        slots = self.queue.take()
        if not session.logs_layers:
            call = (self._op, self._prescale, self._postscale, self.process_set)
            try:
                others = session.runtime.submit_gradients(slots, *call)
            finally:  # an error at one gradient leaves those before it in flight
                self._in_flight += [slot.bucket for slot in slots if slot.bucket.submitted]
            slots = others
        for slot in slots:
            self._note_change(slot)
            self.submit(slot.bucket)
        self._start_unused_with_the_last()

    def _note_change(self, slot: Slot) -> None:
        """Record an error if the gradient, which is about to be copied, was changed after its hook."""
        try:
            slot.check_untouched()
        except InvalidArgumentError as error:
            self._failure = self._failure or error

    def submit(self, bucket: Bucket) -> None:
        """Start a bucket's reduction. After an error the bucket is not submitted and can be submitted again."""
        check_no_conflict(self)
        bucket.finish.clear()
        session = context.current()
        tensors = _core.gather_gradients(bucket) if self.plain else None
        names, as_they_are = bucket.names, tensors is not None
        if tensors is None:
            tensors = self._prepared(bucket)
            names = names if len(tensors) == len(bucket.slots) else None
        if tensors:
            if session.logs_layers and self._codec is None:
                self._log.encode(tensors)
            bucket.handle = self._start(session.runtime, bucket, tensors, names, as_they_are)
        bucket.submitted = True
        self._in_flight.append(bucket)
        self._start_unused_with_the_last()

    def _start_unused_with_the_last(self) -> None:
        """Start the search for unused parameters if all buckets are submitted."""
        if self._unused is not None and len(self._in_flight) == len(self._buckets):
            self._start_unused(self._unused.start)

    def _start_unused(self, start: Callable[[Sequence[Slot]], None]) -> None:
        try:
            start(self._slots)
        except Exception as error:
            self._failure = self._failure or error

    def _finish_unused(self) -> list[Slot]:
        if self._unused is None:
            return []
        try:
            return self._unused.finish()
        except Exception as error:
            self._failure = self._failure or error
            return []
        finally:
            self._unused.expect(self._slots)

    def _start(
        self,
        runtime: Any,
        bucket: Bucket,
        tensors: list[torch.Tensor],
        names: Sequence[str] | None,
        as_they_are: bool,
    ) -> int:
        if bucket.group and self.plain:
            call = (as_they_are, self._op, self._prescale, self._postscale, self.process_set)
            handle: int | None = runtime.submit_gradient_group(bucket, tensors, bucket.name, names, torch.Tensor, *call)
            if handle is not None:
                return handle
        if self._codec is not None:
            handle = collectives.start_encoded(tensors, self._encoded_call(self._codec, bucket))
            if handle is not None:
                return handle
        request = Request(
            OP_ALLREDUCE,
            tensors,
            tensors,
            bucket.name,
            names,
            reduce_op=self._op,
            prescale=self._prescale,
            postscale=self._postscale,
            process_set=self.process_set,
            layers=self._layers,
            group=bucket.group,
            priority=bucket.priority,
            first_ready_ns=bucket.first_ready_ns,
        )
        started: int = runtime.submit(request)
        return started

    def _encoded_call(self, codec: Codec, bucket: Bucket) -> EncodedCall:
        """Return the call that stores the sums in the staged gradients; residuals have the parameters' names."""
        options = self.options
        slots = [slot for slot in bucket.slots if slot.sparse is None]
        return EncodedCall(
            codec,
            "gradient",
            slots[0].name,
            bucket.name,
            self._op,
            (self._prescale, self._postscale),
            options.process_set,
            in_place=True,
            group=bucket.group,
            priority=bucket.priority,
            members=[slot.name for slot in slots],
            residuals=context.current().residuals.part_of(self),
        )

    def _prepared(self, bucket: Bucket) -> list[torch.Tensor]:
        """Return the tensors to send for a bucket with missing, sparse or staged gradients; submit sparse ones here."""
        tensors = []
        for slot in bucket.slots:
            grad = slot.param.grad
            if grad is None:
                # Another rank may have this gradient: the graph may depend on the data.
                grad = slot.param.grad = self._missing(slot)
                if self._unused is not None:
                    self._unused.add(slot)
            if grad.is_sparse:
                if not self.options.sparse_as_dense:
                    slot.grad = None
                    if slot.sparse is None:
                        self._submit_sparse(slot, grad)
                    continue
                self._note_sparse(slot, grad)
                slot.record_submitted(grad)
                tensors.append(self._staged(bucket, slot, grad.to_dense()))
                continue
            slot.record_submitted(grad)
            if grad is slot.view and self.plain and _core.view_is_intact(slot):
                grad = slot.compact
            elif not (self.plain and grad.is_contiguous()) or is_lazy(grad):
                grad = self._staged(bucket, slot, grad)
            tensors.append(grad)
        return tensors

    def _note_sparse(self, slot: Slot, grad: torch.Tensor) -> None:
        slot.sparse_dims = grad.sparse_dim()
        if self._unused is not None:
            self._unused.add_sparse(slot)

    def _missing(self, slot: Slot) -> torch.Tensor:
        zeros = None if slot.sparse_dims else self._views.zeros(slot)
        return no_gradient(slot) if zeros is None else zeros

    def _submit_sparse(self, slot: Slot, grad: torch.Tensor) -> None:
        if not self.plain:
            raise UnsupportedError(
                f"the gradient of {slot.name} is sparse and cannot be compressed; use sparse_as_dense=True or "
                "Compression.none."
            )
        self._note_sparse(slot, grad)
        slot.sparse = sparse_allreduce_async(grad, slot.name, self.options.op, self.options.process_set)

    def _staged(self, bucket: Bucket, slot: Slot, grad: torch.Tensor) -> torch.Tensor:
        """Return a contiguous copy of the gradient in the element type to send.

        The slot keeps the buffer for the next step, unless a user's compressor made it.
        """
        bucket.finish.append(slot)
        if self._converts:
            packed, slot.context = self.options.compression.compress(grad.detach())
            slot.buffer, _ = collectives.adapter.dense(packed)
            if slot.buffer.data_ptr() == grad.data_ptr():
                slot.buffer = slot.buffer.clone()
            context.current().compressed.add(grad.nbytes, slot.buffer.nbytes)
            return slot.buffer
        compression = self.options.compression
        dtype = compression.wire_dtype_of(grad.dtype) if is_cast(compression) else grad.dtype
        buffer = slot.buffer
        if buffer is None or buffer.shape != grad.shape or buffer.dtype is not dtype:
            buffer = slot.buffer = torch.empty(grad.shape, dtype=dtype, device=grad.device)
        if dtype is not grad.dtype:
            context.current().compressed.add(grad.nbytes, buffer.nbytes)
        buffer.copy_(grad)
        return buffer

    # ---- the step

    @property
    def busy(self) -> bool:
        """True if gradients or the ready order are in flight, or gradients are queued."""
        return bool(self._in_flight) or bool(self.queue) or self.order.busy

    @outside
    def synchronize(self) -> None:
        """Submit the buckets that no hook submitted, and wait for all.

        Raises:
            HorocacheError: the first failure, raised when all operations have ended, so that none is left in flight.
        """
        context.current()  # raises without a running session, before anything changes
        if self._frozen:
            self._adopt_unfrozen()
        self._learn_kinds()
        self._submit_rest()
        if self._unused is not None:
            self._start_unused(self._unused.start_all)
        self._start_order()
        try:
            self._finish_all()
        except HorocacheError:  # all operations of the step have ended, as on the other ranks
            self._end_step()
            raise
        self._end_step()

    def _end_step(self) -> None:
        if self.tuned_groups is not None:
            number = self.tuned_groups.end_step()
            if number is not None:
                self._num_groups = number
                self._make_buckets(self._orders or assumed_orders(len(self._slots)))
                self._mark_views()

    def default_groups(self) -> int:
        """Return the number of groups that the optimizer's options mean."""
        return group_count(self.options.num_groups, [s.param.numel() * s.param.element_size() for s in self._slots])

    def _learn_kinds(self) -> None:
        """Ask the other ranks whether missing gradients are sparse, if this rank does not know it."""
        unused = self._unused
        if unused is None or len(self._in_flight) == len(self._buckets):
            return
        rest = [slot for bucket in self._buckets if not bucket.submitted for slot in bucket.slots]
        if not any(slot.sparse_dims is None and slot.param.grad is None for slot in rest):
            return
        for slot in rest:
            grad = slot.param.grad
            if grad is None:
                unused.add(slot)
            elif grad.is_sparse:
                self._note_sparse(slot, grad)
        self._start_unused(unused.start_all)
        try:
            unused.learn_kinds()
        except Exception as error:
            self._failure = self._failure or error

    def _submit_rest(self) -> None:
        """Submit the buckets that no hook submitted. A failure is recorded and does not stop the others."""
        self.queue.forget()
        for bucket in self._buckets:
            if bucket.submitted:
                continue
            try:
                self.submit(bucket)
            except Exception as error:
                self._failure = self._failure or error
                # Only sparse gradients of the bucket may be in flight; _finish() waits for them.
                bucket.finish.clear()
                bucket.submitted = True
                self._in_flight.append(bucket)

    def _adopt_unfrozen(self) -> None:
        """Add parameters made trainable since the last step; unreduced, they would diverge between ranks unnoticed."""
        frozen, self._frozen = self._frozen, []
        self.add_parameters(frozen)

    def _finish_all(self) -> None:
        """Wait for all operations in flight, then raise the step's first failure. It is kept across an interrupt."""
        for bucket in self._finish_direct():
            self._finish(bucket)
        orders = self._finish_order()
        unused = self._finish_unused()
        # Only now: a bucket that was over before an interrupt must not be submitted a second time.
        _core.rearm_gradients(self._in_flight, self.passes)
        self._in_flight.clear()
        for slot in unused:
            slot.param.grad = None
        if self.queue.moved_bytes:
            context.current().runtime.count_bytes_into_views(self.queue.moved_bytes)
            self.queue.moved_bytes = 0
        if orders is not None:
            self._orders = orders
            self._make_buckets(orders)
            self._mark_views()
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _finish_direct(self) -> list[Bucket]:
        """Wait in one call for buckets that were sent as they are; return the buckets that need :meth:`_finish`."""
        if not self._in_flight:
            return []
        session = context.current()
        others: list[Bucket] = self._in_flight
        return others if session.logs_layers else session.runtime.finish_gradients(others)

    def _finish(self, bucket: Bucket) -> None:
        """Wait for one bucket and unpack it. After an interrupt, the bucket can be waited for again."""
        session = context.current()
        try:
            if bucket.handle is not None:
                if bucket.handle in session.pending or bucket.handle in session.outcomes:
                    synchronize([bucket.handle])  # decodes; as a list, because an interrupt may come meanwhile
                else:
                    session.runtime.wait(bucket.handle)
                bucket.handle = None
                if session.logs_layers and self._codec is None:
                    self._log.decode([s.param.grad for s in bucket.slots if s.param.grad is not None], None)
            for slot in bucket.slots:
                slot.check_untouched()
            self._unpack(bucket)
        except Exception as error:  # for any error, the operation is over and its handle consumed
            self._failure = self._failure or error
        bucket.handle = None
        bucket.finish.clear()
        for slot in bucket.slots:
            if slot.sparse is not None:
                try:
                    slot.param.grad = slot.sparse()
                except Exception as error:
                    self._failure = self._failure or error
                slot.sparse = None

    def _unpack(self, bucket: Bucket) -> None:
        for slot in bucket.finish:
            grad, reduced = slot.param.grad, slot.buffer
            assert reduced is not None and grad is not None
            if self._converts:
                reduced = self.options.compression.decompress(reduced, slot.context)
            if grad.is_sparse:  # optimizers for sparse gradients need a sparse tensor
                slot.param.grad = reduced.to(grad.dtype).to_sparse(grad.sparse_dim())
            else:
                grad.copy_(reduced)

    def set_passes(self, passes: int) -> None:
        """Set the number of backward passes per step, from now on."""
        self.passes = passes
        for slot in self._slots:
            slot.passes = passes
        self.queue.forget()
        self.queue.unmoved = []
        for bucket in self._buckets:
            if not bucket.submitted:
                bucket.finish.clear()
                self._finish(bucket)  # sparse gradients are in flight if the dense ones could not be submitted
                _core.rearm_gradients([bucket], passes)
        self._raise_failure()

    def reset(self) -> None:
        """Drop this step: wait for all operations in flight, and restart the count of backward passes."""
        self._finish_all()
        self.set_passes(self.passes)
        self._forget_residuals()

    def _forget_residuals(self, name: str | None = None) -> None:
        session = context.running()
        if session is not None:
            session.residuals.part_of(self).forget(name)


def _remove_hooks(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _check_devices(named: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Raise UnsupportedError if a trainable parameter is on a device whose tensors cannot be sent."""
    for name, param in named:
        if param.requires_grad and not can_be_sent(param):
            raise UnsupportedError(
                f"the parameter {name} is on {param.device}, and there is no {param.device.type.upper()} backend yet. "
                "Move the model with .cpu() before its optimizer is wrapped."
            )
