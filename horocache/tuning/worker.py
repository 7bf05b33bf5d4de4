"""One rank of a tuning job: ``python -m horocache.tuning.worker FOLDER``, started by the command ``horocache tune``."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib.metadata
import platform
import socket
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

import horocache as hc
from horocache.base.untrusted_text import printable
from horocache.errors import HorocacheError, StartupError
from horocache.tuning.measure import Measurement, StuckError, backends_of_job
from horocache.tuning.plan import UNIT_SECONDS, JobPlan, Unit
from horocache.tuning.records import PLAN_FILE, RECORDS_FILE, Began, Facts, Failed, Measured, Writer
from horocache.tuning.table import MAX_TEXT
from horocache.user_backends.registry import registered_for_start

_LAST_SECONDS = 30.0  # after the deadline, when a rank ends by itself even if the command is gone
_MPI_TEXT_BYTES = 8192  # MPI_MAX_LIBRARY_VERSION_STRING of every MPI, or more


def main(folder: Path) -> int:
    """Run one rank and return its exit code."""
    plan = msgspec.json.decode((folder / PLAN_FILE).read_bytes(), type=JobPlan)
    faulthandler.dump_traceback_later(max(1.0, plan.deadline - time.monotonic()) + _LAST_SECONDS, exit=True)
    with registered_for_start(name.partition("/")[0] for name in plan.backends):
        hc.init()
    writer = Writer(folder / RECORDS_FILE) if hc.rank() == 0 else None
    try:
        _check_world(plan)
        _measure_all(plan, writer)
    except (HorocacheError, StuckError) as error:
        reason = str(error) if isinstance(error, StuckError) else f"{type(error).__name__}: {error}"
        if writer is not None:
            writer.write(Failed(printable(reason)[:MAX_TEXT]))
        sys.stderr.write(f"{printable(reason)}\n")
        if isinstance(error, StuckError):
            hc.abort(reason)
        return 1
    finally:
        if writer is not None:
            writer.close()
        hc.shutdown()
    return 0


def _check_world(plan: JobPlan) -> None:
    if (hc.size(), hc.cross_size()) != (plan.ranks, plan.hosts):
        raise StartupError(f"the job has {hc.size()} ranks on {hc.cross_size()} hosts, and was to have {plan.world}")


def _measure_all(plan: JobPlan, writer: Writer | None) -> None:
    names = hc.allgather_object((hc.cross_rank(), _host_name()), name="tune.hosts")
    if writer is not None:
        writer.write(Facts(tuple(dict(names).values()), _libraries()))

    def began(unit: Unit, candidate: str) -> None:
        if writer is not None:
            writer.write(Began(unit.op, unit.bytes, candidate))

    measurement = Measurement(plan, backends_of_job(), began)
    gc.disable()
    for number, unit in enumerate(plan.units):
        seconds = _share_of_unit(plan, len(plan.units) - number)
        if seconds <= 0:
            break
        candidates = measurement.measure(unit, seconds)
        if writer is not None:
            writer.write(Measured(unit.op, unit.bytes, candidates))
        gc.collect()


def _share_of_unit(plan: JobPlan, units_left: int) -> float:
    """Seconds for the repetitions of the next unit, the same on all ranks; 0 if the deadline has come."""
    left = plan.deadline - time.monotonic()
    share = min(UNIT_SECONDS, left / units_left)
    return float(hc.broadcast(np.array(share), root_rank=0, name="tune.share"))


def _host_name() -> str:
    from horocache import _core  # noqa: PLC0415  (the extension is loaded when it is first needed)

    simulated = _core.parse_knobs({})["host_id"][0]
    name = socket.gethostname()
    return printable(f"{name} as {simulated}" if simulated else name)[:MAX_TEXT]


def _libraries() -> dict[str, str]:
    found = {"python": platform.python_version(), "numpy": np.__version__}
    if hc.mpi_enabled() and (text := _mpi_version()):
        found["mpi"] = text
    if version := hc.nccl_built():
        found["nccl"] = str(version)
    if "torch" in sys.modules:
        found["torch"] = importlib.metadata.version("torch")
    return found


def _mpi_version() -> str:
    """The version of the MPI that this process has loaded, in one line; empty if it does not say."""
    with Path("/proc/self/maps").open(errors="replace") as maps:
        paths = [line.split(maxsplit=5)[5].strip() for line in maps if "/libmpi" in line]
    for path in dict.fromkeys(paths):
        get_version = getattr(ctypes.CDLL(path), "MPI_Get_library_version", None)
        if get_version is not None:
            text, length = ctypes.create_string_buffer(_MPI_TEXT_BYTES), ctypes.c_int()
            get_version(text, ctypes.byref(length))
            first = text.value.decode(errors="replace").partition("\n")[0]
            return printable(" ".join(first.split()))[:MAX_TEXT]
    return ""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
