"""Residuals: the parts of tensors that earlier messages left out, for compressors with error feedback.

Note [Error feedback]
A compressor with error feedback adds to a tensor what it left out at the last call, and keeps what it leaves out now.
The tensor given in step ``t`` is ``x_t``, what is sent is ``s_t``, and the residual is ``r_t = x_t + r_(t-1) - s_t``
with ``r_0 = 0``. Therefore ``s_1 + ... + s_t = x_1 + ... + x_t - r_t``: nothing is lost, only delayed. For example,
the largest of two elements is sent, and (3, 2) is given twice. The first call sends (3, 0) and keeps (0, 2); the
second one sends the larger element of (3, 4), which is (0, 4), and keeps (3, 0). Sent are (3, 4) of (6, 4).

Source: Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of
Speech DNNs", Interspeech 2014, section 3; for the largest elements: Stich et al., "Sparsified SGD with Memory", NeurIPS
2018, algorithm 1.

A residual is replaced when the operation has succeeded. After an operation that failed, the tensor's old residual is
still there, so that the same call can be made again.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from horocache.errors import DuplicateNameError, InvalidArgumentError


class Key(NamedTuple):
    """The identity of a tensor from call to call."""

    process_set: int
    kind: str  # the operation
    name: str | bytes  # the user's name
    member: int  # the tensor's number in its group


class Residual:
    """The residual of one tensor.

    Role: owned by :class:`Residuals`; used by the thread that submits the tensor or waits for it.
    """

    __slots__ = ("handle", "values")

    def __init__(self) -> None:
        self.values: Any = None  # an array of the tensor's shape; None before the first operation has succeeded
        self.handle: int | None = None  # of the operation that was submitted last


class Residuals:
    """The residuals of one session, and those of its optimizers.

    Role: owned by the session; used by any thread.
    """

    LIMIT = 1 << 16  # tensors; more of them mean that names change from step to step

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[Key, Residual] = {}
        self._parts: weakref.WeakKeyDictionary[Any, Residuals] = weakref.WeakKeyDictionary()

    def part_of(self, owner: Any) -> Residuals:
        """Return the residuals that belong to ``owner``, such as an optimizer; they go when the owner goes."""
        with self._lock:
            return self._parts.setdefault(owner, Residuals())

    def take(self, key: Key, shape: tuple[int, ...], dtype: Any, is_unfinished: Callable[[int], bool]) -> Residual:
        """Return the residual of a tensor; a new one the first time.

        Args:
            key: the tensor.
            shape: the tensor's dimensions.
            dtype: the element type of the tensor's values.
            is_unfinished: returns True for the handle of an operation whose result is still to be fetched.

        Raises:
            DuplicateNameError: the last operation's result is still to be fetched. InvalidArgumentError: the tensor had
                another shape or type at the last call, or there are too many tensors.
        """
        with self._lock:
            residual = self._of.get(key)
            if residual is None:
                self._check_room(key)
                residual = self._of[key] = Residual()
        if residual.handle is not None and is_unfinished(residual.handle):
            raise DuplicateNameError(
                f"the result of the last {key.kind} of {_text(key)} is still to be fetched, so what that operation "
                "left out is unknown. Call synchronize() with its handle first."
            )
        had = residual.values
        if had is not None and (had.shape, had.dtype) != (shape, dtype):
            raise InvalidArgumentError(
                f"{_text(key)} is {dtype}{list(shape)} in this {key.kind} and was {had.dtype}{list(had.shape)} in the "
                "last one, whose residual therefore does not fit. Give the tensor another name, or call "
                "Compression.topk.clear_residuals()."
            )
        return residual

    def _check_room(self, key: Key) -> None:
        if len(self._of) >= self.LIMIT:
            raise InvalidArgumentError(
                f"residuals of {self.LIMIT} tensors are kept, which is the limit, and {_text(key)} is one more. The "
                "name of a tensor must be the same in every step. Compression.topk.clear_residuals() forgets all "
                "residuals."
            )

    def forget(self, name: str | bytes | None = None, process_set: int | None = None) -> None:
        """Forget all residuals, or those of a name, or of a process set's number; also those of the parts."""
        with self._lock:
            self._of = {
                key: residual
                for key, residual in self._of.items()
                if name not in (None, key.name) or process_set not in (None, key.process_set)
            }
            parts = list(self._parts.values())
        for part in parts:
            part.forget(name, process_set)

    def tensors(self) -> list[Key]:
        """Return the tensors that have a residual, with those of the parts."""
        with self._lock:
            return [*self._of, *(key for part in self._parts.values() for key in part.tensors())]

    def __len__(self) -> int:
        return len(self.tensors())


def _text(key: Key) -> str:
    member = f", member {key.member}" if key.member else ""
    return f"the tensor {key.name!r}{member} of process set {key.process_set}"
