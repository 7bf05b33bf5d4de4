"""A key of a store."""

from __future__ import annotations

from typing import Any

from horocache.dag import Var
from horocache.errors import InvalidArgumentError
from horocache.kvstore.arrays import checked, copy_of, described, is_plain, is_torch, kind
from horocache.kvstore.keys import Key
from horocache.kvstore.ndarray import is_ndarray


class Entry:
    """A key of a store.

    Attributes:
        key: the key.
        name: of its collectives.
        kind: framework, element type and shape of its values.
        stored: the value.
        buffer: where pushed values are summed; made by the first push.
        turn: orders the key's collectives, which have one name.
        taken: orders the reads of the caller's values.
        again: the last allreduce; of the caller's ``tensor``, with ``priority``, if it was all that a call needed.
    """

    def __init__(self, key: Key, name: str, value: Any, turn: Var, taken: Var) -> None:
        self.key = key
        self.name = name
        self.kind = kind(value)
        self.stored = copy_of(value)
        self.buffer: Any = None
        self.turn = turn
        self.taken = taken
        self.again: Any = None
        self.tensor: Any = None
        self.address = 0  # of a torch tensor, whose memory may be another one next time
        self.priority = 0

    def note_again(self, values: list[Any], priority: int) -> None:
        """Note that ``again`` is all that a call with these values needed."""
        if len(values) == 1 and not is_ndarray(values[0]) and is_plain(values[0]):
            self.tensor, self.priority = values[0], priority
            self.address = self.tensor.data_ptr() if is_torch(self.tensor) else 0

    def is_again(self, tensor: Any, priority: int) -> bool:
        """True if ``again`` is all that a call with this tensor needs."""
        same = self.tensor is tensor and self.priority == priority
        return same and (self.address == 0 or tensor.data_ptr() == self.address)

    def check(self, value: Any, what: str) -> Any:
        """Return a value of the caller's if it is of the key's kind.

        Raises:
            InvalidArgumentError: it is not.
        """
        tensor = checked(value, self.key, what)
        if kind(tensor) != self.kind:
            raise InvalidArgumentError(
                f"key {self.key!r}: {what} is {described(kind(tensor))}, and init() was given {described(self.kind)}."
            )
        return tensor
