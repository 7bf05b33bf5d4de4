"""Tuning tables for tests, from a short form, and the selector's reading of their rules."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from horocache.tuning.fingerprint import Fingerprint, fingerprint_of
from horocache.tuning.lookup import SIZES_DIFFER
from horocache.tuning.table import OPERATIONS, Candidate, Layout, Measurements, Size, Table

HERE = fingerprint_of("AMD EPYC", 8, 32, "6.1.0")
WRONG = "wrong"  # instead of a time
CANNOT = "cannot"

# {operation: {(ranks, hosts): {bytes: {candidate: microseconds}}}}
Short = Mapping[str, Mapping[tuple[int, int], Mapping[int, Mapping[str, Any]]]]


def candidate(name: str, time: Any) -> Candidate:
    if time == WRONG:
        return Candidate(name, wrong=3)
    if time == CANNOT:
        return Candidate(name, reason="UnsupportedError: it cannot")
    return Candidate(name, float(time), 0.5, 20)


def make_table(short: Short, host: Fingerprint = HERE, **fields: Any) -> Table:
    operations = [
        Measurements(
            op,
            tuple(
                Layout(
                    *world,
                    tuple(
                        Size(size, tuple(candidate(*each) for each in times.items())) for size, times in sizes.items()
                    ),
                )
                for world, sizes in layouts.items()
            ),
        )
        for op, layouts in short.items()
    ]
    given = {
        "format": "horocache.tuning",
        "version": 1,
        "horocache": "0.1.0",
        "host": host,
        "libraries": {"numpy": "2.0"},
        "when": "2027-01-31T12:00:00Z",
        "command": ("tune",),
        "overlap": 4,
        "operations": tuple(operations),
    }
    return Table(**{**given, **fields})


def random_table(seed: int) -> Table:
    """Draw a table; the same seed gives the same table."""
    rng = random.Random(seed)
    names = ["shm/auto", "shm/oneshot", "mpi/native", "mpi/fold", "gloo"]

    def time() -> Any:
        return rng.choice([WRONG, CANNOT]) if rng.random() < 0.1 else rng.randint(1, 40)

    def sizes() -> dict[int, dict[str, Any]]:
        chosen = rng.sample([1, 2, 3, 64, 1000, 4096, 65536, 1 << 20], rng.randint(1, 5))
        return {size: {name: time() for name in rng.sample(names, rng.randint(1, 5))} for size in chosen}

    worlds = [(ranks, hosts) for ranks in (2, 3, 4, 8, 12, 64) for hosts in (1, 2, 3, 8) if hosts <= ranks]
    return make_table(
        {
            op: {world: sizes() for world in rng.sample(worlds, rng.randint(1, 5))}
            for op in rng.sample(OPERATIONS, rng.randint(1, 4))
        }
    )


_RULE = re.compile(
    r"(?P<op>[a-z]+),cpu,(?P<ranks>[0-9-]+)ranks(,(?P<hosts>[0-9-]+)hosts)?(:(?P<sizes>[0-9]+-[0-9]*))?=(?P<name>.+)"
)


def _within(value: int, term: str | None) -> bool:
    low, dash, high = (term or "1-").partition("-")
    return int(low) <= value and (value == int(low) if not dash else not high or value <= int(high))


def applying(rules: str, op: str, ranks: int, hosts: int, num_bytes: int) -> list[str]:
    """The candidates of the rules that apply to an operation, in their order, as the core's selector reads rules."""
    found = []
    for text in filter(None, rules.split(";")):
        rule = _RULE.fullmatch(text)
        assert rule is not None, text
        if rule["op"] != op or not _within(ranks, rule["ranks"]) or not _within(hosts, rule["hosts"]):
            continue
        if rule["sizes"] is not None:
            assert op not in SIZES_DIFFER, text
            low, high = rule["sizes"].split("-")
            if not (int(low) <= num_bytes and (not high or num_bytes < int(high))):
                continue
        found.append(rule["name"])
    return found


def text_of(rules: Sequence[object]) -> str:
    return ";".join(map(str, rules))
