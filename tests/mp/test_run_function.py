"""``horocache.run``: a job of function calls from within a program."""

import io
import os
import sys
from contextlib import redirect_stdout

import pytest

import horocache as hc


def ranks_and_sum(offset, *, factor=1):
    hc.init()
    total = hc.allreduce([float(hc.rank() + offset)], op=hc.Sum)
    return hc.rank(), hc.size(), total[0] * factor


def test_results_come_by_rank():
    assert hc.run(ranks_and_sum, (1,), {"factor": 2}, np=3) == [(rank, 3, 12.0) for rank in range(3)]
    assert hc.run(lambda: os.environ["HOROCACHE_RANK"], num_proc=2) == ["0", "1"]
    assert hc.run(lambda: 7) == [7]


def test_output_reaches_a_notebook_s_stream():
    stream = io.StringIO()
    with redirect_stdout(stream):
        hc.run(lambda: print("hello"), np=2, use_gloo=True)
    assert sorted(stream.getvalue().splitlines()) == ["[0] hello", "[1] hello"]


def test_an_exception_of_a_rank_is_raised_with_its_traceback():
    def body():
        hc.init()
        if hc.rank() == 1:
            raise KeyError("the rank's own mistake")
        hc.allreduce([1.0], name="x")

    with pytest.raises(hc.RunError, match=r"rank 1 of 2 raised\n(.|\n)*KeyError: \"the rank's own mistake\""):
        hc.run(body, np=2)


def test_a_rank_that_dies_is_named():
    def body():
        hc.init()
        if hc.rank() == 1:
            os._exit(7)
        hc.allreduce([1.0], name="x")

    with pytest.raises(hc.RunError, match="rank 1 of 2 did not return; horocacherun ended with code 7"):
        hc.run(body, np=2)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"min_np": 1}, hc.UnsupportedError, "elastic jobs are not available"),
        ({"use_mpi": True}, hc.UnsupportedError, "mpiexec"),
        ({"ssh_port": 22}, hc.UnsupportedError, "remote hosts"),
        ({"npp": 2}, TypeError, "unexpected keyword argument 'npp'"),
        ({"np": 2, "num_proc": 3}, ValueError, "contradict each other"),
        ({"np": 0}, hc.RunError, "ended with code 2"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        hc.run(lambda: None, **arguments)


def test_what_cannot_be_pickled_is_said():
    with pytest.raises(hc.InvalidArgumentError, match="cannot be pickled"):
        hc.run(lambda stream: None, (sys.stdout,))
