"""Records the behaviour of the CUDA driver API and NCCL call by call: facts for the backend and for its fakes.

Each section runs in a process of its own with a time limit of its own. A row has the call, the expected and the seen
result; a row without an expectation records what happens. The rows are printed and appended to a JSON Lines file.
The exit status is the number of rows that deviate, at most 100. The same program runs against a fake: name its
libraries with --cuda and --nccl.

    python benchmarks/gpu/calibrate.py --output rows.jsonl
    python benchmarks/gpu/calibrate.py --sections two-threads --nccl libnccl.so.2.30.7 --output rows.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.gpu.nccl import find_library
from benchmarks.gpu.record import Recorder, Row
from benchmarks.gpu.session import SCRIPT, Session, die_with_parent, run_child

LAZY, EAGER = {"CUDA_MODULE_LOADING": "LAZY"}, {"CUDA_MODULE_LOADING": "EAGER"}
NO_CACHE = {"CUDA_CACHE_DISABLE": "1"}
ONE_RANK = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_RAS_ENABLE": "0"}
MAX_STATUS = 100
GRACE_S = 15.0  # how long a killed process may take to disappear


@dataclass(frozen=True)
class Section:
    """A part of the calibration that runs in a process of its own."""

    name: str
    function: str  # module:function of this folder
    limit_s: float
    environment: dict[str, str] = field(default_factory=dict)


SECTIONS = (
    Section("versions", "cuda_basics:versions", 40),
    Section("contract", "contract:contract", 30, ONE_RANK | EAGER),
    Section("init", "cuda_basics:init", 30),
    Section("pointers", "cuda_basics:pointers", 40),
    Section("streams", "cuda_streams:handles", 30),
    Section("asynchrony", "cuda_streams:asynchrony", 45),
    Section("loading-lazy", "cuda_streams:loading", 25, LAZY | NO_CACHE),
    Section("loading-eager", "cuda_streams:loading", 25, EAGER | NO_CACHE),
    Section("capture", "cuda_capture:capture", 30),
    Section("faults", "cuda_faults:faults", 40, EAGER),
    Section("hazards", "cuda_faults:hazards", 45),
    Section("memory", "cuda_memory:memory", 40),
    Section("sharing", "cuda_memory:sharing", 40),
    Section("packing", "cuda_packing:packing", 30, EAGER | NO_CACHE),
    Section("staging", "cuda_staging:staging", 30, EAGER),
    Section("ordering", "cuda_ordering:ordering", 30, EAGER),
    Section("nccl-library", "nccl_init:library", 20),
    Section("nccl-init", "nccl_init:init", 45, ONE_RANK),
    Section("nccl-calls", "nccl_calls:calls", 40, ONE_RANK),
    Section("nccl-figures", "nccl_calls:figures", 40, ONE_RANK),
    Section("nccl-hazards", "nccl_calls:hazards", 45, ONE_RANK),
    Section("nccl-flat", "nccl_flat:one", 20, ONE_RANK | EAGER),
    Section("contract-two", "contract:two", 65),
    Section("two-refused", "two_ranks:refused", 45),
    Section("two-hosts", "two_ranks:hosts", 120),
    Section("two-threads", "two_ranks:threads", 110),
    Section("two-processes", "two_ranks:processes", 120),
    Section("nccl-flat-two", "nccl_flat:two", 66),
    Section("torch", "torch_facts:facts", 90),
    Section("torch-distributed", "torch_facts:distributed", 60),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections, print the rows; the number of deviations, at most 100."""
    options = _parse(arguments)
    if options.list:
        for section in SECTIONS:
            print(f"{section.name:18} at most {section.limit_s:3.0f} s  {section.function}")
        return 0
    run = Run(options)
    signal.signal(signal.SIGTERM, run.stop)
    signal.signal(signal.SIGINT, run.stop)
    try:
        sections = {section.name: section for section in SECTIONS}
        for name in options.sections:
            run.section(sections[name])
        return run.summary()
    finally:
        run.kill_all()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [section.name for section in SECTIONS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="append the rows to this JSON Lines file")
    parser.add_argument("--cuda", default="libcuda.so.1", help="library of the driver API (%(default)s)")
    parser.add_argument("--nccl", default=None, help="NCCL's library; by default the copy that torch's wheel needs")
    parser.add_argument(
        "--sections", type=lambda text: text.split(","), default=names, help="names with commas, in the order to run"
    )
    parser.add_argument("--list", action="store_true", help="list the sections and their time limits")
    parser.add_argument("--deadline", type=float, default=400.0, help="seconds for everything (%(default)g)")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.sections) - set(names))
    if unknown:
        parser.error(f"no section {', '.join(unknown)}; the sections are {', '.join(names)}")
    options.nccl = options.nccl or find_library()
    return options


class Run:
    """One run of the program: child processes, rows, output."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._end = time.monotonic() + options.deadline
        self._children: list[subprocess.Popen[bytes]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="calibrate")
        self._rows: list[Row] = []
        self._seconds: dict[str, float] = {}
        about = self._start("about", "cuda_basics:about", {})
        self._wait(about, 60)
        entries = self._entries("about")
        self._about: dict[str, str] = next((entry["about"] for entry in entries[::-1] if "about" in entry), {})
        print(json.dumps(self._about), flush=True)
        self._start("keeper", "cuda_basics:keep_device", {})

    def section(self, section: Section) -> None:
        """Run one section and print its rows."""
        left = self._end - time.monotonic()
        print(f"\n== {section.name}", flush=True)
        if left < 5:
            self._finish(section, [self._row(section, "skipped: no time left", 0, "")])
            return
        start = time.monotonic()
        limit_s = min(section.limit_s, left)
        child = self._start(section.name, section.function, section.environment)
        ended = self._wait(child, limit_s)
        seconds = time.monotonic() - start
        entries = self._entries(section.name)
        rows = [Row(**entry["row"]) for entry in entries if "row" in entry]
        seen = _ending(child.returncode) if ended else f"killed after {limit_s:.0f} s"
        last = next((entry["begin"] for entry in entries[::-1] if "begin" in entry), "no call")
        note = "" if seen == "finished" else f"last call: {last}"
        self._finish(section, [*rows, self._row(section, seen, seconds, note)])

    def _row(self, section: Section, seen: str, seconds: float, note: str) -> Row:
        words, ms = f"at most {section.limit_s:g} s", round(seconds * 1000, 1)
        return Row(section.name, "section", section.function, words, "finished", seen, ms, note=note)

    def _start(self, name: str, function: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, str(SCRIPT), "--helper", function, "--section", name, "--rows", self._path(name)),
            *("--cuda", self._options.cuda, "--nccl", self._options.nccl),
        ]
        defaults = {"NCCL_DEBUG": "WARN", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        child = subprocess.Popen(command, env=defaults | os.environ | environment, start_new_session=True)
        self._children.append(child)
        return child

    def _wait(self, child: subprocess.Popen[bytes], limit_s: float) -> bool:
        """Wait for a child; past its limit kill it with all its processes. True if it ended by itself."""
        ended = True
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            ended = False
        _kill_group(child)
        return ended

    def _path(self, name: str) -> str:
        return str(Path(self._folder.name) / f"{name}.jsonl")

    def _entries(self, name: str) -> list[dict[str, Any]]:
        path = Path(self._path(name))
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def _finish(self, section: Section, rows: list[Row]) -> None:
        self._rows += rows
        self._seconds[section.name] = rows[-1].ms / 1000
        for row in rows:
            print(_line(row))
        sys.stdout.flush()
        if self._options.output is not None:
            with self._options.output.open("a", encoding="utf-8") as output:
                for row in rows:
                    output.write(json.dumps(asdict(row) | {"ok": not row.deviates} | self._about) + "\n")

    def summary(self) -> int:
        """Print the deviations and the sections' times; the exit status."""
        deviations = [row for row in self._rows if row.deviates]
        checked = sum(row.expected is not None for row in self._rows)
        print(f"\n== deviations ({len(deviations)} of {checked} expectations; {len(self._rows)} rows)")
        for row in deviations:
            print(_line(row))
        times = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self._seconds.items())
        print(f"\nseconds: {times}; together {sum(self._seconds.values()):.1f}", flush=True)
        return min(len(deviations), MAX_STATUS)

    def kill_all(self) -> None:
        """Kill what is left of the children."""
        for child in self._children:
            _kill_group(child)
        self._folder.cleanup()

    def stop(self, number: int, frame: FrameType | None) -> NoReturn:
        """Handler of SIGTERM and SIGINT: kill the children and exit."""
        del frame
        print(f"stopped by {signal.Signals(number).name}", flush=True)
        self.summary()
        self.kill_all()
        os._exit(MAX_STATUS)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        print(f"process {child.pid} does not end", flush=True)


def _ending(status: int | None) -> str:
    if status == 0:
        return "finished"
    if status is not None and status < 0:
        return f"died of {signal.Signals(-status).name}"
    return f"exit status {status}"


def _line(row: Row) -> str:
    mark = "  " if row.expected is None else "ok" if not row.deviates else "!!"
    call = f"{row.call}({row.arguments})" if row.call else row.arguments
    expected = f" (expected {row.expected})" if row.deviates else ""
    note = f"  [{row.note}]" if row.note else ""
    return f"{mark} {row.ms:9.3f} ms  {row.name} | {call} -> {row.seen}{expected}{note}"


def child_main(arguments: Sequence[str]) -> int:
    """Run a section or a helper in this process."""
    parser = argparse.ArgumentParser()
    for name in ("--helper", "--section", "--rows", "--cuda", "--nccl"):
        parser.add_argument(name, required=True)
    parser.add_argument("--arguments", type=json.loads, default={})
    options = parser.parse_args(arguments)
    die_with_parent()
    session = Session(Recorder(options.rows, options.section), options.rows, options.cuda, options.nccl)
    return run_child(session, options.helper, options.arguments)


if __name__ == "__main__":
    if "--helper" not in sys.argv:
        sys.exit(main())
    status = 1
    try:
        status = child_main(sys.argv[1:])
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # runs no destructor of a library, which may hang
