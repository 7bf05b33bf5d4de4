"""Allreduce with a codec: the ranks gather each other's encoded tensors, decode them and add them up.

Encoded tensors cannot be added, so the operation is an allgather of bytes, whose number may differ from rank to rank.
Every rank decodes the messages of all ranks and adds the values in rank order, so that all ranks get the same bits.
For example, three ranks have the tensors 1.01, 2.02 and 3.03 and a codec that rounds to whole numbers. The messages say
1, 2 and 3; every rank computes ``(1 + 2) + 3 = 6``, and the average 2.

A rank receives the messages of all other ranks, where an uncompressed allreduce moves two tensors at most. So with P
ranks, fewer bytes cross the wire only if a message has less than ``2 / P`` of the tensor's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from horocache.base.operation_codes import OP_ALLGATHER
from horocache.base.request import Request
from horocache.base.residuals import Key, Residual, Residuals
from horocache.collectives.arguments import Name, check_backend, check_scales, set_id
from horocache.collectives.codecs.message import BadMessage, Kind, Values
from horocache.collectives.compression import Array, Codec
from horocache.collectives.reduce_op import Average, ReduceOp, Sum
from horocache.collectives.submitter import Submitter
from horocache.collectives.transforms import LayerList, codec_layers
from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.errors import CollectiveError, CorruptError, MismatchError, NonFiniteError, UnsupportedError

T = TypeVar("T")


class EncodedCall(NamedTuple):
    """The arguments of an allreduce with a codec, except for its tensors."""

    codec: Codec
    kind: str  # the operation's name in errors
    name: Name  # the user's name
    full_name: str | bytes | None  # the name that the ranks compare
    op: int
    scales: tuple[float, float]
    process_set: ProcessSet
    in_place: bool = False
    group: bool = False
    wait_follows: bool = False
    backend: str | None = None
    priority: int = 0
    # Names of the tensors, and their residuals. None: the name of the call and their positions; the session's.
    members: Sequence[str] | None = None
    residuals: Residuals | None = None


class _Feedback(NamedTuple):
    """A tensor's residual, and what becomes of it when the operation has succeeded."""

    residual: Residual
    left_out: Array


def check_codec_op(codec: Codec, op: int) -> None:
    """Raise UnsupportedError unless decoded tensors are added up."""
    if op not in (Sum, Average):
        raise UnsupportedError(
            f"Compression.{codec.wire_name} is for op=Sum and op=Average, not for {ReduceOp(op).name}. Use "
            "Compression.fp16 or no compression."
        )


class EncodedSum(Submitter[T]):
    """Allreduce with a codec. Allreduce derives from this class."""

    def start_encoded(self, tensors: Sequence[Any], call: EncodedCall) -> int | None:
        """Start the operation; the finisher returns a group's list of results, or the result of a single tensor.

        Returns:
            A handle; None if the codec does not take the element type of the tensors, so that they are to be reduced
            uncompressed. Nothing has been sent then.

        Raises:
            UnsupportedError: the op is neither Sum nor Average, the codec takes some of the tensors only, or it needs a
                name. DuplicateNameError, InvalidArgumentError: see :meth:`Residuals.take`.
        """
        check_codec_op(call.codec, call.op)
        check_scales(call.scales)
        number, session = set_id(call.process_set), context.current()
        sources = self.checked(tensors, call.kind, call.in_place)
        types = [self.adapter.float_type(source) for source in sources]
        if not _takes(call, types):
            return None
        buffers, _ = self.dense(sources, sources)
        arrays = [self.adapter.to_numpy(buffer) for buffer in buffers]
        residuals = self._residuals_of(arrays, call, number)
        with np.errstate(all="ignore"):  # NaN and infinities are values like others
            if residuals:
                arrays = [_with(residual, array) for residual, array in zip(residuals, arrays, strict=True)]
            values = [Values(Kind(name, array.shape), array) for name, array in zip(types, arrays, strict=True)]
            layers = codec_layers(call.codec, call.group)
            messages: list[Any]
            messages, contexts = layers.encode(values)
            receive = _Receiver(call, layers, contexts, [each.kind for each in values], session.checks_finite)
            feedback = _feedback(residuals, values, receive, messages)

        def finish(answer: Any) -> Any:
            with np.errstate(all="ignore"):
                totals = _totals(answer, receive)
                for residual, left_out in feedback:
                    residual.values = left_out
                results = self._stored(totals, sources, buffers, call.in_place)
            return results if call.group else results[0]

        before, after = map(float, call.scales)
        handle = self.start(
            finish,
            Request(
                OP_ALLGATHER,
                messages,
                None,
                call.full_name,
                [f"allreduce.{member}" for member in call.members] if call.members and call.group else None,
                process_set=number,
                # The token makes the ranks compare the purpose of the gathered bytes.
                layers=f"{layers.signature},allreduce={ReduceOp(call.op).name}*{before}*{after}",
                group=call.group,
                wait_follows=call.wait_follows,
                backend=check_backend(call.backend),
                priority=call.priority,
            ),
        )
        for residual, _ in feedback:
            residual.handle = handle
        session.compressed.add(sum(each.kind.tensor_bytes for each in values), sum(each.nbytes for each in messages))
        return handle

    def _residuals_of(self, arrays: Sequence[Array], call: EncodedCall, process_set: int) -> list[Residual]:
        """Return the residual of each tensor; an empty list if the codec has no error feedback."""
        if not call.codec.error_feedback:
            return []
        if call.name is None:
            raise UnsupportedError(
                f"Compression.{call.codec.wire_name} adds to a tensor what it left out of the tensor of the same name "
                f"before, and this {call.kind} has no name. Give it one that is the same in every step, such as "
                f"{call.kind}(..., name='weights')."
            )
        session = context.current()
        store = session.residuals if call.residuals is None else call.residuals

        def is_unfinished(handle: int) -> bool:
            return handle in session.pending or handle in session.outcomes

        name = call.name if isinstance(call.name, bytes) else str(call.name)
        if call.members is None:
            keys = [Key(process_set, call.kind, name, member) for member in range(len(arrays))]
        else:
            keys = [Key(process_set, call.kind, member, 0) for member in call.members]
        return [
            store.take(key, array.shape, array.dtype, is_unfinished) for key, array in zip(keys, arrays, strict=True)
        ]

    def _stored(self, totals: Sequence[Array], sources: Sequence[T], buffers: Sequence[T], in_place: bool) -> list[T]:
        """Store the results in the tensors, or in new ones; 16-bit floats are rounded here, once."""
        adapter = self.adapter
        results = []
        for total, source, buffer in zip(totals, sources, buffers, strict=True):
            result = source if in_place else adapter.empty_like(buffer)
            adapter.store_numpy(result, total)
            results.append(adapter.written(result))
        return results


def _takes(call: EncodedCall, types: Sequence[str]) -> bool:
    """True if the codec takes the tensors, False if it takes none of them."""
    taken = [name in call.codec.dtypes for name in types]
    if any(taken) and not all(taken):
        first, other = taken.index(True), taken.index(False)
        raise UnsupportedError(
            f"Compression.{call.codec.wire_name} encodes tensor {first} of the {call.kind}, of type {types[first]}, "
            f"and not tensor {other}, of type {types[other] or 'other than floating-point'}. Reduce them in two groups."
        )
    return all(taken)


def _with(residual: Residual, array: Array) -> Array:
    return array if residual.values is None else np.asarray(array + residual.values)


class _Receiver(NamedTuple):
    """Decodes the messages of one call, rank by rank."""

    call: EncodedCall
    layers: LayerList
    contexts: list[Any]
    kinds: list[Kind]
    checks_finite: bool

    def decoded(self, messages: list[Any], rank: int) -> list[Array]:
        """Return new arrays with one rank's values.

        Args:
            messages: the rank's message for each tensor.
            rank: its rank in the process set.

        Raises:
            CorruptError: a message is damaged. MismatchError: it is of a tensor of another shape or type.
        """
        try:
            return self.layers.decode(messages, self.contexts)
        except BadMessage as bad:
            raise self._error(bad, rank, messages[bad.member]) from bad

    def non_finite(self, parts: Sequence[Array], rank: int) -> list[str]:
        """Return a text for each of a rank's tensors that has NaN or infinite values."""
        texts = []
        for member, part in enumerate(parts):
            bad = np.flatnonzero(~np.isfinite(part))
            if bad.size:
                texts.append(
                    f"{self._text(member)}: rank {self._global(rank)} submitted {bad.size} NaN or infinite of "
                    f"{part.size} values, the first at element {bad[0]}"
                )
        return texts

    def _global(self, rank: int) -> int:
        return self.call.process_set.ranks[rank]

    def _text(self, number: int) -> str:
        """Describe the call, and the tensor with this number in a group."""
        call = self.call
        member = f", member {number}," if call.group and call.members is None else ""
        shown = call.name if call.members is None else call.members[number]
        name = "without a name" if shown is None else repr(shown)
        return f"{call.kind} {name}{member} with Compression.{call.codec.wire_name}"

    def _error(self, bad: BadMessage, rank: int, message: Array) -> CollectiveError:
        what, own, sender = self._text(bad.member), self.kinds[bad.member], self._global(rank)
        if bad.other is not None:
            return MismatchError(
                f"{what}: rank {sender} gave a tensor {bad.other}, and rank {context.rank()} a tensor {own}. All ranks "
                "must give tensors of the same shape and type."
            )
        return CorruptError(
            f"{what}: the message of rank {sender} cannot be decoded on rank {context.rank()}: {bad}. It has "
            f"{message.nbytes} bytes, for a tensor {own}. The memory or the network of one of the two ranks damages "
            "data, or their versions of the codec differ."
        )


def _feedback(
    residuals: Sequence[Residual], values: Sequence[Values], receive: _Receiver, messages: list[Any]
) -> list[_Feedback]:
    """Return what this rank's messages leave out; see Note [Error feedback] in horocache/base/residuals.py."""
    if not residuals:
        return []
    feedback = []
    decoded = receive.decoded(messages, receive.call.process_set.rank())
    for residual, (_, array), sent in zip(residuals, values, decoded, strict=True):
        left_out = np.subtract(array, sent, out=sent)
        left_out[~np.isfinite(array)] = 0
        feedback.append(_Feedback(residual, left_out))
    return feedback


def _messages(answer: Any) -> Iterator[tuple[int, list[Any]]]:
    """Yield each rank, as its rank in the process set, with its messages; ranks that have joined have none."""
    gathered = [np.asarray(result) for result in answer]
    counts = [list(result.rows) for result in answer]
    ends = [np.cumsum(rows) for rows in counts]
    for rank in range(len(counts[0])):
        if any(rows[rank] for rows in counts):
            yield (
                rank,
                [
                    all_bytes[end[rank] - rows[rank] : end[rank]]
                    for all_bytes, end, rows in zip(gathered, ends, counts, strict=True)
                ],
            )


def _totals(answer: Any, receive: _Receiver) -> list[Array]:
    """Decode the messages of all ranks and add the values up in rank order; returns the scaled sum of each tensor."""
    before, after = map(float, receive.call.scales)
    totals: list[Array] = []
    defects: list[str] = []
    for rank, messages in _messages(answer):
        parts = receive.decoded(messages, rank)
        if receive.checks_finite:
            defects += receive.non_finite(parts, rank)
        if before != 1.0:
            _scale(parts, before)
        for total, part in zip(totals, parts, strict=False):
            np.add(total, part, out=total)
        totals = totals or parts
    if defects:
        raise NonFiniteError(f"{'; '.join(defects)}. HOROCACHE_CHECK_FINITE makes this an error.")
    if receive.call.op == Average:
        for total in totals:
            np.divide(total, answer[0].divisor_ranks, out=total)
    if after != 1.0:
        _scale(totals, after)
    return totals


def _scale(arrays: Sequence[Array], factor: float) -> None:
    for array in arrays:
        np.multiply(array, factor, out=array)
