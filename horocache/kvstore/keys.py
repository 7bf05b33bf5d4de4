"""Keys and values as the calls of a store take them: one, or lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horocache.errors import InvalidArgumentError

Key = str | int


class Keys:
    """Checks the keys of one store, which are all numbers or all texts.

    Role: owned by a store, which locks it.
    """

    def __init__(self) -> None:
        """Begin without a key."""
        self._type: type | None = None

    def check(self, key: object) -> Key:
        """Return the key.

        Raises:
            InvalidArgumentError: it is neither a number nor a text, or the store has keys of the other type.
        """
        kind = str if isinstance(key, str) else int
        if not isinstance(key, (str, int)) or isinstance(key, bool):
            raise InvalidArgumentError(f"a key is a str or an int, not {key!r}.")
        if self._type not in (None, kind):
            known = "str" if self._type is str else "int"
            raise InvalidArgumentError(
                f"key {key!r} is of type {kind.__name__}, and the store's keys are of type {known}; do not mix them."
            )
        self._type = kind
        return key

    def pairs(self, key: Any, value: Any, what: str) -> list[tuple[Key, list[Any]]]:
        """Return each key of a call with its values.

        Args:
            key: a key, or a list of different ones.
            value: of one key, a tensor or a list of tensors. Of a list of keys, a list with one of these for each key,
                or with equally many tensors for each key, in the order of the keys.
            what: "value" or "out", for the error.

        Raises:
            InvalidArgumentError: the numbers do not fit, a key comes twice, or something is None.
        """
        if key is None or value is None:
            raise InvalidArgumentError(f"a key and a{'n' if what == 'out' else ''} {what} are needed, not None.")
        if not isinstance(key, (list, tuple)):
            return [(self.check(key), list(value) if isinstance(value, (list, tuple)) else [value])]
        keys = [self.check(each) for each in key]
        if twice := sorted({str(each) for each in keys if keys.count(each) > 1}):
            raise InvalidArgumentError(f"a list of keys must not repeat one: {', '.join(twice)}.")
        if not isinstance(value, (list, tuple)) or not keys or len(value) % len(keys):
            raise InvalidArgumentError(f"{len(keys)} keys need a list of {what}s, equally many for each.")
        return list(zip(keys, _parts(value, len(keys)), strict=True))


def _parts(values: Sequence[Any], count: int) -> list[list[Any]]:
    if len(values) == count:
        return [list(each) if isinstance(each, (list, tuple)) else [each] for each in values]
    of_each = len(values) // count
    return [list(values[at * of_each : (at + 1) * of_each]) for at in range(count)]
