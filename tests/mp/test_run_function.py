"""``horocache.run``: a job of function calls from within a program."""

import io
import os
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import horocache as hc
from horocache.core import context


def ranks_and_sum(offset, *, factor=1):
    hc.init()
    total = hc.allreduce([float(hc.rank() + offset)], op=hc.Sum)
    return hc.rank(), hc.size(), total[0] * factor


def test_run_returns_the_results_by_rank():
    assert hc.run(ranks_and_sum, (1,), {"factor": 2}, np=3) == [(rank, 3, 12.0) for rank in range(3)]
    assert hc.run(lambda: os.environ["HOROCACHE_RANK"], num_proc=2) == ["0", "1"]
    assert hc.run(lambda: 7) == [7]


@pytest.mark.parametrize("arguments", [{}, {"use_gloo": True, "disable_cache": False, "start_timeout": 20}])
def test_knobs_that_are_not_set_have_their_defaults(arguments):
    def read_knobs():
        hc.init()
        knobs = context.current().runtime.knobs()
        return {name: knobs[name] for name in ("cache_capacity", "cycle_time", "fusion_threshold")}

    want = {"cache_capacity": ("1024", "default"), "cycle_time": ("1.0", "default")}
    want["fusion_threshold"] = (str(128 << 20), "default")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOROCACHE_", "HOROVOD_"))}
    assert hc.run(read_knobs, np=2, env=environment, **arguments) == [want] * 2


def test_output_of_ranks_goes_to_the_callers_stdout_stream():
    stream = io.StringIO()
    with redirect_stdout(stream):
        hc.run(lambda: print("hello"), np=2)
    assert sorted(stream.getvalue().splitlines()) == ["[0] hello", "[1] hello"]


def test_arguments_without_effect_give_a_note():
    stream = io.StringIO()
    with redirect_stderr(stream):
        hc.run(lambda: None, use_mpi=True, disable_cache=False, network_interfaces=["eth0", "lo"], ssh_port=22)
    for flag in ("--mpi", "--network-interfaces", "--ssh-port"):
        assert f"{flag} has no effect: " in stream.getvalue()
    assert "--disable-cache" not in stream.getvalue()


def test_an_exception_of_a_rank_is_raised_with_its_traceback():
    def fail_on_rank_1():
        hc.init()
        if hc.rank() == 1:
            raise KeyError("the rank's own mistake")
        hc.allreduce([1.0], name="x")

    with pytest.raises(hc.RunError, match=r"rank 1 of 2 raised\n(.|\n)*KeyError: \"the rank's own mistake\""):
        hc.run(fail_on_rank_1, np=2)


def test_the_error_names_a_rank_that_dies():
    def exit_on_rank_1():
        hc.init()
        if hc.rank() == 1:
            os._exit(7)
        hc.allreduce([1.0], name="x")

    with pytest.raises(hc.RunError, match="rank 1 of 2 did not return; horocacherun ended with code 7"):
        hc.run(exit_on_rank_1, np=2)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"min_np": 1}, hc.UnsupportedError, "elastic jobs are not available"),
        ({"mpi_args": "--map-by node"}, hc.UnsupportedError, "mpiexec"),
        ({"npp": 2}, TypeError, "unexpected keyword argument 'npp'"),
        ({"np": 2, "num_proc": 3}, ValueError, "contradict each other"),
        ({"np": 0}, ValueError, "a whole number of ranks, from 1 on; it is 0"),
        ({"np": "2"}, ValueError, "it is '2'"),
        ({"hosts": "localhost:1", "hostfile": "x"}, ValueError, "pass one of them"),
    ],
)
def test_invalid_arguments_raise(arguments, error, words):
    with pytest.raises(error, match=words):
        hc.run(lambda: None, **arguments)


def test_arguments_that_cannot_be_pickled_raise():
    with pytest.raises(hc.InvalidArgumentError, match="cannot be pickled"):
        hc.run(lambda stream: None, (sys.stdout,))


def test_the_job_ends_with_the_process_that_started_it(tmp_path):
    script = tmp_path / "caller.py"
    script.write_text(
        "import os, sys, time\n"
        "import horocache as hc\n"
        "def write_pid(folder):\n"
        "    open(os.path.join(folder, os.environ['HOROCACHE_RANK']), 'w').write(str(os.getpid()))\n"
        "    time.sleep(60)\n"
        "hc.run(write_pid, (sys.argv[1],), np=2)\n"
    )
    folder, temporary = tmp_path / "pids", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    caller = subprocess.Popen([sys.executable, str(script), str(folder)], env=environment)
    deadline = time.monotonic() + 30
    while sum(1 for path in folder.iterdir() if path.read_text()) < 2:
        assert time.monotonic() < deadline and caller.poll() is None
        time.sleep(0.02)
    pids = [int(path.read_text()) for path in folder.iterdir()]
    caller.kill()
    caller.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in pids) or list(temporary.iterdir()):
        assert time.monotonic() < deadline, (pids, list(temporary.iterdir()))
        time.sleep(0.02)


def test_the_error_names_the_rank_that_failed_first():
    def fail_on_all_ranks():
        hc.init()
        if hc.rank() == 1:
            raise KeyError("the cause")
        try:
            hc.allreduce([1.0], name="x")
        except hc.HorovodInternalError as error:
            raise RuntimeError("a consequence") from error

    with pytest.raises(hc.RunError, match="rank 1 of 2 raised"):
        hc.run(fail_on_all_ranks, np=2)


class ErrorWithoutText(Exception):
    def __str__(self):
        raise TypeError("no words")


class ResultThatCannotBeRead:
    def __reduce__(self):
        return int, ("x",)


def test_errors_without_text_and_results_that_cannot_be_read_name_their_rank():
    def end_on_rank_1(how):
        hc.init()
        if hc.rank() == 1:
            if how == "raise":
                raise ErrorWithoutText
            return ResultThatCannotBeRead()
        return hc.rank()

    with pytest.raises(hc.RunError, match=r"rank 1 of 2 raised\n(.|\n)*ErrorWithoutText"):
        hc.run(end_on_rank_1, ("raise",), np=2)
    with pytest.raises(hc.RunError, match="the result of rank 1 cannot be unpickled: ValueError"):
        hc.run(end_on_rank_1, ("return",), np=2)


def test_a_stream_that_refuses_a_line_gets_the_other_lines():
    class Ascii(io.StringIO):
        def write(self, text):
            text.encode("ascii")
            if "fail" in text:
                raise OSError("full")
            return super().write(text)

    stream = Ascii()
    with redirect_stdout(stream):
        hc.run(lambda: print("größe\nfail\nlast"), np=1)
    assert stream.getvalue().splitlines() == ["[0] gr\\xf6\\xdfe", "[0] last"]
    with redirect_stdout(None):
        assert hc.run(lambda: print("without a stream"), np=1) == [None]


def test_output_without_line_feeds_reaches_a_stream_in_pieces():
    class Longest(io.StringIO):
        longest = 0

        def write(self, text):
            self.longest = max(self.longest, len(text))
            return super().write(text)

    stream = Longest()
    with redirect_stdout(stream):
        hc.run(lambda: print("ö" * 1_000_000 + "\r1/2\r2/2"), np=1)
    assert stream.getvalue().replace("[0] ", "") == "ö" * 1_000_000 + "\r1/2\r2/2\n"
    assert stream.longest <= 1 << 16


def test_functions_of_installed_modules_are_imported_by_the_ranks():
    import json
    import platform

    assert hc.run(platform.node, np=2) == [platform.node()] * 2
    assert hc.run(json.dumps, ([1],)) == ["[1]"]
