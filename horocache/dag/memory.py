"""Variables of tensors: one for each piece of memory."""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from horocache.dag.variable import Var
from horocache.errors import InvalidArgumentError

if TYPE_CHECKING:
    from horocache.dag.engine import Engine

_FEWEST_TO_SWEEP = 1024
_MOST_QUICK = 4096
_OWN_REFERENCES = 2  # to a variable that no call is about to use: its record's, and that of getrefcount


class _Known(NamedTuple):
    """The variable of a piece of memory, and the object that owns it, as far as it can be found."""

    variable: Var
    owner: weakref.ref[Any] | None


class MemoryVariables:
    """The variables of tensors, by the address where their memory begins.

    A variable that no operation uses and that has no exception holds nothing, so that it may go at any time: idle ones
    are forgotten when there are many, unless a call is about to use one. When memory is free, its address may be that
    of another tensor, which gets another variable.

    Role: owned by the engine; used by any thread.
    """

    def __init__(self, engine: Engine) -> None:
        """Begin without variables."""
        self._engine = weakref.proxy(engine)
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}
        self._arrays: dict[int, tuple[weakref.ref[Any], Var]] = {}  # by id, for the arrays that come again and again
        self._sweep_at = _FEWEST_TO_SWEEP

    def is_operand(self, value: object) -> bool:
        """True if the value is a variable or has one."""
        return isinstance(value, (Var, np.ndarray)) or _is_torch(value)

    def variable_of(self, tensor: Any) -> Var:
        """Return the variable of a tensor's memory. Raises InvalidArgumentError for anything else."""
        quick = self._arrays.get(id(tensor))
        if quick is not None and quick[0]() is tensor:
            return quick[1]
        owner = _owner(tensor)
        address = _address(owner)
        if tensor.nbytes == 0:  # such tensors share nothing, but maybe an address
            return self._new("a tensor without elements")
        with self._lock:
            variable = self._found(owner, address)
            if type(tensor) is np.ndarray:  # whose memory stays the same
                if len(self._arrays) >= _MOST_QUICK:
                    self._arrays.clear()
                self._arrays[id(tensor)] = weakref.ref(tensor), variable
            return variable

    def _found(self, owner: Any, address: int) -> Var:
        known = self._known.get(address)
        if known is not None and not self._is_stale(known):
            return known.variable
        if len(self._known) >= self._sweep_at:
            self._sweep()
        made = self._new(f"memory at {address:#x}")
        self._known[address] = _Known(made, _reference(owner))
        return made

    def _new(self, name: str) -> Var:
        variable: Var = self._engine.var(name)
        return variable

    def _is_stale(self, known: _Known) -> bool:
        """True if the memory's owner is gone, and no operation uses the variable any more."""
        gone = known.owner is not None and known.owner() is None
        return gone and not self._engine.core.is_used(known.variable.handle)

    def _sweep(self) -> None:
        core = self._engine.core
        self._arrays.clear()
        kept = {}
        for address, known in self._known.items():
            wanted = sys.getrefcount(known.variable) > _OWN_REFERENCES or not core.is_idle(known.variable.handle)
            if wanted and not self._is_stale(known):
                kept[address] = known
        self._known = kept
        self._sweep_at = max(_FEWEST_TO_SWEEP, 2 * len(kept))


def _is_torch(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _owner(tensor: Any) -> Any:
    """The object that owns the memory which a tensor and its views share, as far as it can be found."""
    while isinstance(tensor, np.ndarray) and (isinstance(tensor.base, np.ndarray) or _is_torch(tensor.base)):
        tensor = tensor.base
    return tensor


def _address(owner: Any) -> int:
    """The address where the owner's memory begins."""
    if isinstance(owner, np.ndarray):
        return int(owner.ctypes.data)
    if _is_torch(owner):
        return int(owner.untyped_storage().data_ptr())
    raise InvalidArgumentError(
        f"an operation reads and writes variables, torch tensors and NumPy arrays, not {type(owner).__name__}."
    )


def _reference(owner: Any) -> weakref.ref[Any] | None:
    """A reference that tells when the memory is gone; None for torch tensors, several of which may own it."""
    return weakref.ref(owner) if isinstance(owner, np.ndarray) else None
