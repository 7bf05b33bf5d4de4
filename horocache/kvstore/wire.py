"""The messages between the workers and the servers of a store of type ``dist_sync``.

A worker sends a *command*: a fixed number of integers. A payload may follow, under a tag of its own. A value that is
larger than :data:`LARGE` elements is cut into equal parts, one for each server; any other value is on one server.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np

from horocache.collectives.object_collectives import dumps, loads
from horocache.errors import UnsupportedError
from horocache.kvstore.arrays import is_torch

INIT, PUSH, PUSH_FAILED, PULL, SET, FLUSH, STOP = range(1, 8)
# Of a command: kind, number of the key, number of elements of the payload, code of their type, tag of the answer.
COMMAND_INTEGERS = 5
STATUS_BYTES = 1024  # of an answer's first message: the text of an error, or zeros
LARGE = 1_000_000
_TAGS_FROM = 0x6B760000  # "kv"; a store has two tags, which follow each other
_MOST_STORES = 0x4000
ANSWERS_FROM, ANSWERS = 0x40000000, 0x10000000  # the tags of answers, which a worker takes in turn
DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")


class Tags(NamedTuple):
    """The tags of one store: of commands, and of what workers send after them."""

    command: int
    payload: int

    @classmethod
    def of(cls, store: int) -> Tags:
        """Return those of a store by its number."""
        if store >= _MOST_STORES:
            raise UnsupportedError(f"a job may make {_MOST_STORES} stores of type 'dist_sync'.")
        return cls(_TAGS_FROM + 2 * store, _TAGS_FROM + 2 * store + 1)


class Part(NamedTuple):
    """The elements of a value that one server has."""

    server: int  # its number among the servers
    begin: int
    end: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.end - self.begin


def number_of(key: object) -> int:
    """Return a number for a key, the same on all workers, whatever the order of their keys."""
    digest = hashlib.blake2b(repr(key).encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def parts_of(key: object, elements: int, servers: int) -> list[Part]:
    """Return which server has which elements of a key's value."""
    if elements <= LARGE or servers == 1:
        return [Part(number_of(key) % servers, 0, elements)]
    bounds = [elements * server // servers for server in range(servers + 1)]
    return [Part(server, bounds[server], bounds[server + 1]) for server in range(servers)]


def vector(value: Any, key: object) -> np.ndarray:
    """Return the elements of a contiguous tensor as a NumPy vector of its memory.

    Raises:
        UnsupportedError: servers cannot add such elements.
    """
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in DTYPES or (is_torch(value) and not value.is_cpu):
        raise UnsupportedError(
            f"key {key!r}: a store of type 'dist_sync' takes {', '.join(DTYPES)} on the CPU, not {value.dtype}."
        )
    array: np.ndarray = value.numpy() if is_torch(value) else value
    return array.reshape(-1)


def packed(value: Any) -> np.ndarray:
    """Return an object as bytes to send."""
    return np.frombuffer(dumps(value), np.uint8).copy()


def unpacked(data: np.ndarray) -> Any:
    """Return the object that was packed."""
    return loads(data.tobytes())


def status(text: str) -> np.ndarray:
    """Return the first message of an answer."""
    data = np.zeros(STATUS_BYTES, np.uint8)
    encoded = np.frombuffer(text.encode()[:STATUS_BYTES], np.uint8)
    data[: encoded.size] = encoded
    return data


def text_of(data: np.ndarray) -> str:
    """Return the text of a status."""
    return data.tobytes().rstrip(b"\0").decode(errors="replace")
