"""In place of the ranks of a tuning job: writes records as the file ``behaviour`` beside this job's folder says.

A behaviour maps "OP BYTES CANDIDATE" to die, raise, hang, or a time; "start" to die; others have a time of 10 us.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from horocache.tuning.plan import JobPlan
from horocache.tuning.records import PLAN_FILE, RECORDS_FILE, Began, Facts, Failed, Measured, Writer
from horocache.tuning.table import Candidate

folder, behaviours = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
plan = msgspec.json.decode((folder / PLAN_FILE).read_bytes(), type=JobPlan)
with Path(sys.argv[2]).with_name("plans").open("ab") as plans:
    plans.write(msgspec.json.encode(plan) + b"\n")
if behaviours.get("start") == "die":
    sys.exit("there is no network\nat all")
writer = Writer(folder / RECORDS_FILE)
writer.write(Facts(("here",), {"python": "3"}))
for unit in plan.units:
    results = []
    for name in ("x/fast", "x/slow"):
        if name in plan.skipped.get(unit.op, ()):
            continue
        writer.write(Began(unit.op, unit.bytes, name))
        what = behaviours.get(f"{unit.op} {unit.bytes} {name}", 10)
        if what == "die":
            (folder / RECORDS_FILE).open("ab").write(b'{"type":"measured","op')
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "raise":
            writer.write(Failed("PeerLostError: rank 1 died"))
            sys.exit(1)
        if what == "interrupt":
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(60)
        if what == "hang":
            time.sleep(60)
        results.append(Candidate(name, float(what), 1.0, 3))
    writer.write(Measured(unit.op, unit.bytes, tuple(results)))
