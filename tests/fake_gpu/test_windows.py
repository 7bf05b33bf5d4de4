"""Packed tensors in a symmetric window of NCCL: on all ranks, or on none."""

import pytest
from jobs import error_of, on_nccl

WINDOW = {"nccl_window_bytes": 1 << 20}
MADE = ("ncclMemAlloc", "ncclCommWindowRegister")
GONE = ("ncclCommWindowDeregister", "ncclMemFree")


def adds(hc, arrays):
    """Add up groups that fit into the window, and one that does not."""

    def total(count, name):
        group = [arrays.DeviceArray.of([float(i + hc.rank())] * count) for i in range(3)]
        results = arrays.collectives.grouped_allreduce(group, op=hc.Average, name=name)
        return [float(result.numpy().max()) for result in results]

    totals = [total(10, "small"), total(87_000, "almost full"), total(100_000, "too large"), total(10, "small")]
    counts = [arrays.calls(name) for name in ("ncclAllReduce", *MADE)]
    hc.shutdown()
    if counts[-1] > 0:
        arrays.wait_for("ncclMemFree", arrays.calls("ncclMemAlloc"))
    return totals, counts, [arrays.calls(name) for name in GONE]


TOTALS = [[0.5, 1.5, 2.5]] * 4


def test_packed_tensors_are_in_a_window_if_they_fit():
    # The fake compares on all ranks whether the buffers of a call are in a window, and where.
    assert on_nccl(adds, 2, knobs=WINDOW) == [(TOTALS, [4, 1, 1], [1, 1])] * 2


def test_by_default_there_is_no_window():
    assert on_nccl(adds, 2) == [(TOTALS, [4, 0, 0], [0, 0])] * 2


@pytest.mark.parametrize(
    ("fault", "ranks"),
    [("ncclMemAlloc:1:1", (1,)), ("ncclMemAlloc:1:1", (0, 1)), ("ncclCommWindowRegister:1:1", (0, 1))],
)
def test_a_rank_that_has_no_window_says_why_and_no_rank_uses_one(fault, ranks):
    plans = {rank: {"FAKE_GPU_FAULTS": fault} for rank in ranks}
    outcomes = on_nccl(adds, 2, knobs=WINDOW, environment_of=plans, LEVEL="warning", check=False)
    told = "packed CUDA tensors are in no window of NCCL (HOROCACHE_NCCL_WINDOW_BYTES), because this rank has none: "
    for rank, outcome in enumerate(outcomes):
        totals, counts, _ = outcome.value
        assert totals == TOTALS and counts[0] == 4, outcome
        assert outcome.output.count(told) == (rank in ranks), outcome.output
        if rank in ranks:
            assert f"{fault.split(':')[0]} failed with 1" in outcome.output.split(told)[1], outcome.output


def test_an_nccl_without_windows_does_without():
    (outcome,) = on_nccl(adds, 1, version=22203, knobs=WINDOW, LEVEL="warning", check=False)
    assert outcome.value == ([[float(i) for i in range(3)]] * 4, [4, 0, 0], [0, 0]), outcome
    assert "NCCL 2.22.3 has no windows; they need 2.27.3 or newer" in outcome.output


def registers(hc, arrays):
    """The error of an operation that needs the window, and how many NCCL ran."""
    group = [arrays.DeviceArray.of([1.0]), arrays.DeviceArray.of([2.0])]
    error = error_of(lambda: arrays.collectives.grouped_allreduce(group, op=hc.Sum, name="g"))
    return error, arrays.calls("ncclAllReduce")


def test_a_rank_on_which_nccl_does_not_register_is_named_on_all_ranks():
    plans = {1: {"FAKE_GPU_FAULTS": "ncclCommWindowRegister:1:1"}}  # the other rank waits for it in the call
    knobs = {**WINDOW, "start_timeout": "8", "nccl": "on"}
    for (name, text), launched in on_nccl(registers, 2, knobs=knobs, environment_of=plans):
        assert name == "UnsupportedError" and launched == 0, text
        assert "rank 1: ncclCommWindowRegister failed with 1" in text, text


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_ranks_that_do_not_register_in_time_go_on_together(mode):
    plans = {1: {"FAKE_GPU_FAULTS": "ncclCommWindowRegister:1:hang"}}
    answers = on_nccl(registers, 2, knobs={**WINDOW, "start_timeout": "8", "nccl": mode}, environment_of=plans)
    for (name, text), launched in answers:
        assert launched == 0
        if mode == "auto":
            assert name == "", text
        else:
            assert name == "UnsupportedError" and "did not register the ranks' windows within 8 s" in text, text


def test_a_rank_that_is_killed_leaves_a_window_that_is_freed():
    def run(hc, arrays):
        import os
        import signal

        group = [arrays.DeviceArray.of([1.0]), arrays.DeviceArray.of([2.0])]
        arrays.collectives.grouped_allreduce(group, op=hc.Sum, name="g")

        def go_on():
            hc.barrier()
            if hc.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            for _ in range(99):
                arrays.collectives.grouped_allreduce(group, op=hc.Sum, name="g")

        error = error_of(go_on)
        hc.shutdown()
        arrays.wait_for("ncclMemFree", 1)
        return error[0], arrays.calls("ncclMemFree")

    assert on_nccl(run, 2, knobs=WINDOW, check=False)[0].value == ("PeerLostError", 1)
