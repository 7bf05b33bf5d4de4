"""Ranks disagree about operations. Each of these operations fails on all ranks, and the job goes on."""

import numpy as np
from common import allreduce_and_check, attempt, await_file, job, publish, report

import horocache as hc

ODD = 2  # the rank that differs


def disagree(what, usual, odd):
    """One rank calls ``odd``, the others call ``usual``; then all ranks check that the job goes on."""
    attempt(what, odd if hc.rank() == ODD else usual)
    allreduce_and_check("after." + what)


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def main():
    for cached in (False, True):
        suffix = ".cached" if cached else ""
        if cached:
            hc.allreduce(ones(4), op=hc.Sum, name="shape")
            hc.allreduce(ones(4), op=hc.Sum, name="dtype")
        disagree(
            "shape" + suffix,
            lambda: hc.allreduce(ones(4), op=hc.Sum, name="shape"),
            lambda: hc.allreduce(ones(5), op=hc.Sum, name="shape"),
        )
        disagree(
            "dtype" + suffix,
            lambda: hc.allreduce(ones(4), op=hc.Sum, name="dtype"),
            lambda: hc.allreduce(ones(4, dtype=np.float64), op=hc.Sum, name="dtype"),
        )
    disagree(
        "reduce-op",
        lambda: hc.allreduce(ones(4), op=hc.Sum, name="op"),
        lambda: hc.allreduce(ones(4), op=hc.Max, name="op"),
    )
    disagree(
        "scale",
        lambda: hc.allreduce(ones(4), op=hc.Sum, name="scale", prescale_factor=0.5),
        lambda: hc.allreduce(ones(4), op=hc.Sum, name="scale", prescale_factor=0.25),
    )
    disagree(
        "root",
        lambda: hc.broadcast(ones(4), 0, name="root"),
        lambda: hc.broadcast(ones(4), 1, name="root"),
    )
    disagree("rows", lambda: hc.allgather(ones(4, 2), name="rows"), lambda: hc.allgather(ones(4, 3), name="rows"))
    disagree(
        "alltoall",
        lambda: hc.alltoall(ones(3, 2), splits=[1, 1, 1], name="alltoall"),
        lambda: hc.alltoall(ones(3, 5), splits=[1, 1, 1], name="alltoall"),
    )
    disagree(
        "group-size",
        lambda: hc.grouped_allreduce([ones(2), ones(2)], op=hc.Sum, name="group"),
        lambda: hc.grouped_allreduce([ones(2), ones(2), ones(2)], op=hc.Sum, name="group"),
    )
    attempt("splits", lambda: hc.alltoall(ones(3, 2), splits=[1, 2, 3], name="splits"))
    attempt("splits-count", lambda: hc.alltoall(ones(3, 2), splits=[1, 2], name="splits"))
    allreduce_and_check("after.splits")
    duplicate()
    report("done")


def duplicate():
    if hc.rank() == 0:
        first = hc.allreduce_async(ones(3), op=hc.Sum, name="twice")
        attempt("duplicate", lambda: hc.allreduce_async(ones(3), op=hc.Sum, name="twice"))
        publish("submitted-twice")
        result = hc.synchronize(first)
    else:
        await_file("submitted-twice")  # so that the first operation cannot have completed
        result = hc.allreduce(ones(3), op=hc.Sum, name="twice")
    report("first-of-twice", value=float(result[0]))


with job():
    main()
