"""Results of NCCL with two ranks against a reference in Python, and their figures."""

from __future__ import annotations

import math
import operator
import random
import struct
import time
from collections.abc import Callable

from benchmarks.gpu.cuda import Code
from benchmarks.gpu.nccl import DATA_TYPES, OPERATIONS, TYPE, DataType
from benchmarks.gpu.nccl_calls import allreduce_rows
from benchmarks.gpu.party import RANKS, Party
from benchmarks.gpu.record import CallError

COUNT = 1000
KIB, MIB = 1 << 10, 1 << 20
FOLDS: dict[str, Callable[[float, float], float]] = {
    "sum": operator.add,
    "prod": operator.mul,
    "max": max,
    "min": min,
    "avg": lambda first, second: (first + second) / 2,
}


def values(kind: DataType, rank: int) -> list[float]:
    """Small integers whose sums, products and means are values of every data type; each pair of values occurs."""
    if rank == 1:
        return [index // 4 % 2 + 1 for index in range(COUNT)]
    plain = [index % 4 for index in range(COUNT)]
    return [-value if kind.signed and index % 3 == 0 else value for index, value in enumerate(plain)]


def matrix(party: Party) -> None:
    """Allreduce of every data type and operation."""
    for kind in DATA_TYPES:
        for name, number in OPERATIONS.items():
            words = f"{kind.name}, {name}"
            party.recorder.begin(f"{party.mode}, rank {party.number}: allreduce {words}", "ncclAllReduce")
            pairs = list(zip(values(kind, 0), values(kind, 1), strict=True))
            start = time.perf_counter()
            try:
                result = party.rank.reduce(kind.pack(values(kind, party.number)), kind, number)
            except CallError as error:
                if error.code == Code.NOT_READY:  # the communicator is lost
                    raise
                party.row(f"allreduce {words}", "ncclAllReduce", words, str(error), "exact")
                continue
            ms = (time.perf_counter() - start) * 1000
            wanted = [FOLDS[name](first, second) for first, second in pairs]
            if name == "avg" and not kind.floating:
                seen, expect = _rounding_rule(kind.unpack(result), wanted), None if kind.signed else "exact"
            else:
                seen, expect = _compare(kind.unpack(result), wanted), "exact"
            party.common(f"allreduce {words}", "ncclAllReduce", f"{COUNT} elements", seen, expect, ms)


def _compare(seen: list[float], wanted: list[float]) -> str:
    for index, (value, expected) in enumerate(zip(seen, wanted, strict=True)):
        if value != expected:
            return f"wrong: element {index} is {value}, not {expected}"
    return "exact"


def _rounding_rule(seen: list[float], wanted: list[float]) -> str:
    """How an integer mean is rounded."""
    if seen == [math.floor(value) for value in wanted]:
        return "exact" if min(wanted) >= 0 else "rounds down"
    if seen == [math.trunc(value) for value in wanted]:
        return "rounds to zero"
    return _compare(seen, wanted)


Wanted = tuple[tuple[str, tuple[object, ...], list[int]], ...]


def _wanted(party: Party, count: int) -> Wanted:
    """The collectives, their arguments, and what this rank then has in its second buffer."""
    first, second = _named(0, RANKS * count), _named(1, RANKS * count)
    handles = (party.rank.communicator, party.rank.stream)
    mine, zeros = slice(party.number * count, (party.number + 1) * count), [0] * (RANKS * count)
    both = [left + right for left, right in zip(first, second, strict=True)]
    gathered = first[:count] + second[:count]
    source, target, number = party.rank.source, party.rank.target, TYPE["int32"].number
    wanted: Wanted = (
        ("ncclBroadcast", (source, target, count, number, 1, *handles), second[:count]),
        ("ncclReduce", (source, target, count, number, 0, 1, *handles), (both if party.number else zeros)[:count]),
        ("ncclAllGather", (source, target, count, number, *handles), gathered),
        ("ncclReduceScatter", (source, target, count, number, 0, *handles), both[mine]),
        ("ncclAlltoAll", (source, target, count, number, *handles), first[mine] + second[mine]),
        ("ncclGather", (source, target, count, number, 0, *handles), zeros if party.number else gathered),
        ("ncclScatter", (source, target, count, number, 1, *handles), second[mine]),
        ("ncclSend", (), (first if party.number else second)[:count]),
    )
    return wanted


def other_collectives(party: Party) -> None:
    """Each other collective once, with int32 values that name their rank and place."""
    kind, count, rank = TYPE["int32"], 256, party.rank
    own, size = _named(party.number, RANKS * count), RANKS * count * 4
    for call, arguments, expected in _wanted(party, count):
        if party.nccl.find(call) is None:
            party.common(call, call, "", "not exported")
            continue
        rank.driver.upload(rank.source, kind.pack(list(own)))
        rank.driver.upload(rank.target, bytes(size))
        start = time.perf_counter()
        if call == "ncclSend":
            _exchange(party, count, 1 - party.number)
        else:
            party.nccl.must(call, *arguments)
        rank.settle(8)
        ms = (time.perf_counter() - start) * 1000
        seen = kind.unpack(rank.driver.download(rank.target, 4 * len(expected)))
        party.common(call, call, f"{count} int32", _compare(seen, list(expected)), "exact", ms)
    code = party.allreduce(0)
    rank.settle(8)
    party.common("allreduce of nothing", "ncclAllReduce", "0 elements", party.nccl.code_name(code), "ncclSuccess")


def _named(rank: int, count: int) -> list[int]:
    return [1000 * (rank + 1) + index for index in range(count)]


def _exchange(party: Party, count: int, other: int) -> None:
    rank, number = party.rank, TYPE["int32"].number
    party.nccl.must("ncclGroupStart")
    party.nccl.must("ncclSend", rank.source, count, number, other, rank.communicator, rank.stream)
    party.nccl.must("ncclRecv", rank.target, count, number, other, rank.communicator, rank.stream)
    party.nccl.must("ncclGroupEnd")


def special_values(party: Party) -> None:
    """Overflow, NaN, signed zero, infinities, rounding, and a scalar of bfloat16."""
    pairs: tuple[tuple[str, str, list[float], list[float]], ...] = (
        ("int8", "sum", [100, -100], [100, -100]),
        ("uint8", "sum", [200, 255], [100, 1]),
        ("int8", "prod", [100, -128], [3, -1]),
        ("int32", "sum", [2**31 - 1, -(2**31)], [1, -1]),
        ("int8", "avg", [100, -100], [101, -101]),
        ("uint8", "avg", [255, 200], [255, 101]),
        ("int64", "max", [2**53 + 1, -(2**53) - 1], [2**53, -(2**53)]),
        ("float16", "sum", [60000.0, -60000.0], [60000.0, -60000.0]),
        ("float32", "max", [math.nan, 1.0, -0.0, math.inf], [1.0, math.nan, 0.0, -math.inf]),
        ("float32", "min", [math.nan, 1.0, -0.0, math.inf], [1.0, math.nan, 0.0, -math.inf]),
        ("float32", "sum", [math.nan, -0.0, math.inf], [1.0, -0.0, -math.inf]),
        ("float16", "max", [math.nan, 1.0, -0.0], [1.0, math.nan, 0.0]),
        ("float64", "min", [math.nan, 1.0, -0.0], [1.0, math.nan, 0.0]),
    )
    for name, operation, first, second in pairs:
        kind, own = TYPE[name], second if party.number else first
        result = kind.unpack(party.rank.reduce(kind.pack(own), kind, OPERATIONS[operation]))
        party.common(f"{operation} of {name}, special values", "ncclAllReduce", f"{first} and {second}", str(result))
    for name in ("bfloat16", "float16"):
        _rounding(party, TYPE[name])


def _rounding(party: Party, kind: DataType) -> None:
    """Sums of random values that need rounding: to the nearest, ties to even?"""
    generator = random.Random(20261127)
    low, high = (115 << 7, 135 << 7) if kind.name == "bfloat16" else (10 << 10, 20 << 10)
    columns = []
    for _ in range(RANKS):
        bits = [generator.randrange(low, high) | generator.getrandbits(1) << 15 for _ in range(COUNT)]
        columns.append(struct.pack(f"<{COUNT}H", *bits))
    result = kind.unpack(party.rank.reduce(columns[party.number], kind, OPERATIONS["sum"]))
    sums = [first + second for first, second in zip(*(kind.unpack(column) for column in columns), strict=True)]
    wrong = sum(value != _nearest(kind, exact) for value, exact in zip(result, sums, strict=True))
    seen, expect = f"{wrong} of {COUNT} wrong", f"0 of {COUNT} wrong"
    words = "random values, rounded to nearest, ties to even"
    party.common(f"rounding of {kind.name} sums", "ncclAllReduce", words, seen, expect)


def _nearest(kind: DataType, exact: float) -> float:
    if kind.name == "float16":
        return float(struct.unpack("<e", struct.pack("<e", exact))[0])
    if exact == 0:
        return 0.0
    _, exponent = math.frexp(exact)
    unit = 2.0 ** (exponent - 1 - kind.mantissa_bits)
    return round(exact / unit) * unit  # round takes ties to even


def figures(party: Party) -> None:
    """Time of allreduce; on one GPU only the order of magnitude means something."""
    sizes = ((4, "4 B", 40), (64 * KIB, "64 KiB", 20), (MIB, "1 MiB", 10), (64 * MIB, "64 MiB", 3))
    for size, label, repetitions in sizes:
        party.barrier(f"figures {label}")
        words = f"{party.mode}, rank {party.number}: {label}, 2 ranks"
        allreduce_rows(party.checks, party.rank, words, size, party.rank.target, repetitions)


def end(party: Party) -> None:
    """Finalize and destroy."""
    party.barrier("end")
    for call in ("ncclCommFinalize", "ncclCommDestroy"):
        start = time.perf_counter()
        code = getattr(party.nccl, call)(party.rank.communicator)
        ms = (time.perf_counter() - start) * 1000
        party.row(f"end by {call}", call, "both ranks", party.nccl.code_name(code), "ncclSuccess", ms)
