"""Sums until an injected fault (--fault) hits one rank; the others report their errors and exit with 3."""

import sys

from common import allreduce_and_check, attempt, job, report

with job():
    for step in range(200):
        # 1 MiB: reduced in slices, so that a rank can be lost in the middle
        if attempt("step", lambda step=step: allreduce_and_check(f"x.{step % 3}", 1 << 18)) is not None:
            report("failed", step=step)
            sys.exit(3)
report("survived")
