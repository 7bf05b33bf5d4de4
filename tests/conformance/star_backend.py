"""A backend in Python whose ranks send all of their data to rank 0 and get all of it back: small, and not for speed."""

from __future__ import annotations

import functools
import pickle
import select
import socket
import struct

import numpy as np

from horocache.user_backends import Backend

FOLDS = {
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


class Star(Backend):
    """Every operation is one exchange of the ranks' tensors, after which each rank computes its result."""

    def __init__(self, group):
        super().__init__(group)
        listener = socket.create_server(("127.0.0.1", 0)) if group.rank == 0 else None
        port = group.allgather_object(listener and listener.getsockname()[1])[0]
        if group.rank == 0:
            self.others = sorted(
                (self._greeted(listener.accept()[0]) for _ in range(group.size - 1)), key=lambda p: p[0]
            )
            listener.close()
        else:
            self.hub = socket.create_connection(("127.0.0.1", port))
            self.hub.sendall(struct.pack("<q", group.rank))

    def _greeted(self, connection):
        return struct.unpack("<q", connection.recv(8, socket.MSG_WAITALL))[0], connection

    def start(self, call):
        mine = pickle.dumps((call.input.tobytes(), call.sends))
        if self.group.rank == 0:
            parts = [mine] + [self._receive(connection, call) for _, connection in self.others]
            everything = pickle.dumps(parts)
            for _, connection in self.others:
                self._send(connection, everything)
        else:
            self._send(self.hub, mine)
            everything = self._receive(self.hub, call)
        if not call.cancelled:
            self._compute(call, [pickle.loads(part) for part in pickle.loads(everything)])
        return call

    def test(self, work):
        return True

    def close(self):
        for connection in [c for _, c in self.others] if self.group.rank == 0 else [self.hub]:
            connection.close()

    def _send(self, connection, data):
        connection.sendall(struct.pack("<q", len(data)) + data)

    def _receive(self, connection, call):
        data = b""
        size = None
        while size is None or len(data) < size:
            if call.cancelled:
                return pickle.dumps([])
            if not select.select([connection], [], [], 0.05)[0]:
                continue
            came = connection.recv(1 << 20 if size is None else max(1, size - len(data)))
            if not came:
                raise ConnectionError("a rank has closed its connection")
            data += came
            if size is None and len(data) >= 8:
                size, data = struct.unpack("<q", data[:8])[0], data[8:]
        return data

    def _compute(self, call, parts):
        stored = call.output.dtype
        inputs = [np.frombuffer(data, stored) for data, _ in parts]
        own = self.group.rank
        if call.op == "broadcast":
            call.output[:] = inputs[call.root]
        elif call.op in ("allreduce", "reduce"):
            call.output[:] = self._fold(call, inputs)
        elif call.op == "reducescatter":
            first, count = call.sends[own]
            call.output[:] = self._fold(call, [values[first : first + count] for values in inputs])
        elif call.receives:
            for peer, (first, count) in enumerate(call.receives):
                begin = parts[peer][1][own][0] if count else 0
                call.output[first : first + count] = inputs[peer][begin : begin + count]

    def _fold(self, call, inputs):
        half = call.dtype in ("float16", "bfloat16")
        wide = [widened(call.dtype, values) if half else values for values in inputs]
        with np.errstate(all="ignore"):
            total = functools.reduce(FOLDS[call.reduce_op], wide)
        return narrowed(call.dtype, total) if half else total


def widened(dtype, values):
    """Halves as float32; those of bfloat16 come as uint16."""
    return values.astype(np.float32) if dtype == "float16" else (values.astype(np.uint32) << 16).view(np.float32)


def narrowed(dtype, values):
    """The same back, rounded to nearest even."""
    if dtype == "float16":
        return values.astype(np.float16)
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
