"""One rank of a benchmark: ``rank.py DIRECTORY`` runs the case of DIRECTORY/job.json and writes rank-N.json there."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.page import Page
from benchmarks.peers import Rank


def main(directory: Path) -> None:
    """Measure and write the result."""
    job = json.loads((directory / "job.json").read_text(encoding="utf-8"))
    rank = _number(bool(job["mpi"]))
    page = Page(directory / "page", rank, job["ranks"])
    context = Rank(rank, job["ranks"], page, directory, frozenset(job["impls"]), job["mpi"], job["job_id"])
    case = importlib.import_module(f"benchmarks.cases.{job['bench']}")
    page.barrier()
    series = case.measure(context, **job["parameters"])
    path = directory / f"rank-{rank}.json"
    path.write_text(json.dumps([asdict(one) for one in series]), encoding="utf-8")
    context.close()


def _number(mpi: bool) -> int:
    if mpi:
        from mpi4py import MPI

        return int(MPI.COMM_WORLD.Get_rank())
    from horocache import _core

    return int(_core.identity()["rank"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
