"""Random jobs for the simulation: hypothesis draws programs, process sets and faults, so that failures shrink."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

STRATEGIES = ("bits", "leaders", "coordinator", "tree")
Instruction = tuple[Any, ...]
Scenario = dict[str, Any]

_NAMES = [f"tensor.{i}" for i in range(6)]
# Settings and their values; the simulation's other backend is "other". "gone" is none.
_SETTINGS = {
    "fusion_threshold": ("0", "1000", "134217728"),
    "cycle_time": ("0", "0.01", "5"),
    "cache": ("0", "1"),
    "table": ("", "allreduce=other", "*:1k-=other;allreduce:0-64=simulated", "*=gone;allgather=other"),
}
_OPS = ("allreduce", "allreduce", "allgather", "broadcast", "reducescatter", "alltoall", "barrier")


def submit(
    name: str,
    op: str = "allreduce",
    *,
    in_set: int = 0,
    shapes: list[list[int]] | None = None,
    root: int = -1,
    priority: int = 0,
) -> Instruction:
    if shapes is None:
        shapes = [] if op in ("barrier", "join") else [[-1, 3] if op in ("allgather", "alltoall") else [4, 3]]
    return ("submit", in_set, op, name, shapes, 0 if op == "broadcast" and root < 0 else root, priority)


@st.composite
def requests(draw: st.DrawFn, in_set: int, *, name: str) -> Instruction:
    """Draw one request, which all members of a set submit."""
    op, priority = draw(st.sampled_from(_OPS)), draw(st.integers(-2, 2))
    if op == "allreduce":
        lengths = draw(st.lists(st.integers(0, 2000), min_size=1, max_size=4))
        return submit(name, op, in_set=in_set, shapes=[[length] for length in lengths], priority=priority)
    return submit(name, op, in_set=in_set, priority=priority)


@st.composite
def settings_texts(draw: st.DrawFn) -> str:
    """Draw a change of one to four settings."""
    names = draw(st.lists(st.sampled_from(sorted(_SETTINGS)), min_size=1, unique=True))
    return "\n".join(f"{name}={draw(st.sampled_from(_SETTINGS[name]))}" for name in names)


@st.composite
def process_sets(draw: st.DrawFn, ranks: int) -> list[list[int]]:
    """The world and up to three other sets."""
    others = draw(st.lists(st.sets(st.integers(0, ranks - 1), min_size=1), max_size=3))
    return [list(range(ranks)), *(sorted(other) for other in others)]


@st.composite
def settings_of_job(draw: st.DrawFn, ranks: int) -> Scenario:
    return {
        "ranks": ranks,
        "seed": draw(st.integers(0, 2**32)),
        "radix": draw(st.integers(2, 5)),
        "ranks_per_host": draw(st.integers(1, 4)),
        "max_delay_ns": draw(st.sampled_from([0, 1_000, 100_000])),
        "delay_words": draw(st.booleans()),
        "cache_capacity": draw(st.sampled_from([0, 1, 2, 4, 1024])),
        "cache_capacity_fixed": draw(st.booleans()),
        "fusion_threshold_bytes": draw(st.sampled_from([0, 1_000, 1 << 27])),
        "disable_group_fusion": draw(st.booleans()),
        "tick": draw(st.sampled_from([False, False, True])),
    }


@st.composite
def clean_jobs(draw: st.DrawFn, ranks: int) -> Scenario:
    """All members of a set submit equal requests, each in its own order, and wait; shapes and settings change."""
    scenario = draw(settings_of_job(ranks))
    sets = draw(process_sets(ranks))
    programs: list[list[Instruction]] = [[] for _ in range(ranks)]
    known: dict[tuple[int, str], Instruction] = {}
    for _ in range(draw(st.integers(1, 4))):
        chosen: list[Instruction] = []
        for number in range(len(sets)):
            for name in draw(st.lists(st.sampled_from(_NAMES), unique=True, max_size=4)):
                if (number, name) not in known or draw(st.booleans()):
                    known[number, name] = draw(requests(number, name=name))
                chosen.append(known[number, name])
        # A few orders, spread over the ranks: one per rank would make large jobs hard to draw.
        orders = draw(st.lists(st.permutations(chosen), min_size=1, max_size=3))
        for rank, program in enumerate(programs):
            order = orders[rank % len(orders)]
            program.extend(request for request in order if rank in sets[request[1]])
            program.append(("wait_all",))
    for _ in range(draw(st.integers(0, 3))):
        number = draw(st.integers(0, len(sets) - 1))
        program = programs[sets[number][0]]  # only a set's first member may change its settings
        change = ("configure", number, draw(settings_texts()))
        program.insert(draw(st.integers(0, len(program))), change)
    return {**scenario, "sets": sets, "programs": programs}


@st.composite
def wild_jobs(draw: st.DrawFn, ranks: int) -> Scenario:
    """A clean job in which ranks drop, repeat, change and reorder requests, wait early, leave, abort, pause and die."""
    scenario = draw(clean_jobs(ranks))
    for _ in range(draw(st.integers(0, 6))):
        program = scenario["programs"][draw(st.integers(0, ranks - 1))]
        if not program:
            continue
        place = draw(st.integers(0, len(program) - 1))
        what = draw(st.sampled_from(["drop", "repeat", "change", "wait", "compute", "swap"]))
        _change(draw, program, place, what)
    if draw(st.integers(0, 3)) == 0:
        rank = draw(st.integers(0, ranks - 1))
        end = draw(st.sampled_from([("abort",), ("leave", 0)]))
        program = scenario["programs"][rank]
        program.insert(draw(st.integers(0, len(program))), end)
    kinds = draw(st.lists(st.sampled_from(["kill", "pause"]), max_size=2))
    scenario["faults"] = [
        (kind, draw(st.integers(0, ranks - 1)), draw(st.integers(0, 400)), draw(st.integers(0, 5_000_000)))
        for kind in kinds
    ]
    return scenario


def _change(draw: st.DrawFn, program: list[Instruction], place: int, what: str) -> None:
    instruction = program[place]
    if what == "drop":
        del program[place]
    elif what == "repeat":
        program.insert(place, instruction)
    elif what == "wait":
        program.insert(place, ("wait", draw(st.integers(0, 20))))
    elif what == "compute":
        program.insert(place, ("compute", draw(st.integers(0, 3_000_000))))
    elif what == "swap":
        other = draw(st.integers(0, len(program) - 1))
        program[place], program[other] = program[other], program[place]
    elif instruction[0] == "submit" and instruction[4]:
        shapes = [*instruction[4][:-1], [*instruction[4][-1], 7]]
        program[place] = (*instruction[:4], shapes, *instruction[5:])
