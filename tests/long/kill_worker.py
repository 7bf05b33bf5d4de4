"""One rank of a job in which kills.py kills a rank: runs operations until an error, and writes it with its time."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

RANK_VARIABLES = ("HOROCACHE_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
FOLDER, SEED, LAYOUT = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
LAUNCHED = int(next(os.environ[name] for name in RANK_VARIABLES if name in os.environ))
if LAYOUT:
    os.environ["HOROCACHE_HOST_ID"] = f"host {LAYOUT[LAUNCHED]}"

import numpy as np  # noqa: E402

import horocache as hc  # noqa: E402


def note(name: str, **values: object) -> None:
    """Write a file that is complete when it appears."""
    partial = FOLDER / f".{name}"
    partial.write_text(json.dumps(values))
    partial.rename(FOLDER / name)


def work(chance: random.Random) -> None:
    """Run a random operation; all ranks draw the same operation."""
    kind = chance.randrange(9)
    count = chance.choice([0, 1, 100, 5_000, 200_000])
    mine = np.full(count, float(hc.rank() + 1))
    if kind == 0:
        hc.allreduce(mine, op=hc.Sum, name=f"sum.{count}")
    elif kind == 1:
        hc.allgather(np.ones((hc.rank() + 1, 3)), name="gather")
    elif kind == 2:
        hc.broadcast(mine, chance.randrange(hc.size()), name=f"broadcast.{count}")
    elif kind == 3:
        hc.barrier()
    elif kind == 4:
        hc.synchronize([hc.allreduce_async(mine, op=hc.Sum, name=f"async.{i}.{count}") for i in range(4)])
    elif kind == 5:
        hc.grouped_allreduce([mine, np.ones(3)], op=hc.Max, name=f"group.{count}")
    elif kind == 6:
        hc.allgather_object({"rank": hc.rank()}, name="object")
    elif kind == 7:
        right, left = (hc.rank() + 1) % hc.size(), (hc.rank() - 1) % hc.size()
        hc.sendrecv(mine, right, np.empty(count), left)
    else:
        time.sleep(chance.random() * 0.02)  # a step that computes: no rank waits


def end(chance: random.Random) -> None:
    """End as programs do after an error, in one of three ways."""
    how = chance.randrange(3)
    if how == 0:
        os._exit(3)
    if how == 1:
        hc.shutdown()
    sys.exit(3)


def main() -> None:
    chance = random.Random(SEED)
    time.sleep(random.Random(SEED + LAUNCHED).random() * 0.1)  # ranks start at different times
    began = time.monotonic()
    note(f"starts{LAUNCHED}", pid=os.getpid())
    try:
        hc.init(flight_record="off", log_level="error")
        note(f"ready{hc.rank()}", pid=os.getpid())
        while True:
            work(chance)
    except hc.HorocacheError as error:
        note(f"saw{LAUNCHED}", at=time.monotonic(), since=began, kind=type(error).__name__, text=str(error))
        end(random.Random(SEED + LAUNCHED))


main()
