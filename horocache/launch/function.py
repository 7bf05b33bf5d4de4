"""``horocache.run``: starts a job from within a program or a notebook; its ranks call a function of that program."""

from __future__ import annotations

import codecs
import contextlib
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import IO, Any, TextIO

from horocache.collectives import object_collectives
from horocache.core import context
from horocache.core.launcher_environment import own_environment
from horocache.errors import (
    AbortedError,
    InvalidArgumentError,
    PeerLostError,
    RunError,
    ShutDownError,
    StallError,
    UnsupportedError,
)
from horocache.launch.cause import read_cause
from horocache.launch.folders import temporary_folder

_CALL, _RESULT = "call", "result.{}"


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    np: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: float | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    executable: str | None = None,
    env: Mapping[str, str] | None = None,
    **others: Any,
) -> list[Any]:
    """Start a job whose ranks call ``func(*args, **kwargs)``, wait for it, and return the ranks' results.

    Works in a script, where it needs no ``if __name__ == "__main__"``, and in a notebook. Ranks are new processes,
    which must call ``init()`` themselves. Their output appears here, each line prefixed with the rank.

    Args:
        func: any function that :mod:`cloudpickle` can pickle, also a local one or a lambda. The ranks search for
            modules in this process's ``sys.path``; functions and classes of the main program or a notebook are pickled
            by value.
        args: positional arguments of ``func``, the same for all ranks.
        kwargs: keyword arguments of ``func``, the same for all ranks.
        num_proc: number of ranks; 1 if neither ``num_proc`` nor ``np`` is given.
        np: Horovod's older name of ``num_proc``.
        hosts: this host and how many ranks it may take, such as ``"localhost:4"``, as ``horocacherun -H`` takes it.
        hostfile: path of a file with lines such as ``localhost slots=4``, as ``horocacherun --hostfile`` takes it.
        start_timeout: seconds within which all ranks must have called ``init()``.
        output_filename: folder in which each rank's output is also kept.
        verbose: True lets the launcher print what it starts: the ranks, their command and their threads.
        executable: path of the Python interpreter of the ranks; this process's if not given.
        env: environment of the ranks; this process's if not given.
        **others: Horovod's further arguments. ``use_gloo``, ``use_mpi``, ``disable_cache``, ``network_interface(s)``,
            ``ssh_port`` and ``ssh_identity_file`` have no effect on one host, and the launcher says so. ``mpi_args``
            and the arguments of elastic jobs are not available.

    Returns:
        The ranks' results, in rank order.

    Raises:
        RunError: a rank raised or died. InvalidArgumentError, ValueError: the function cannot be pickled, or numbers
            contradict each other. UnsupportedError, TypeError: an argument is not available or unknown.
    """
    _refuse(others)
    size = _number_of_ranks(num_proc, np)
    if hosts is not None and hostfile is not None:
        raise InvalidArgumentError("hosts and hostfile are both given; pass one of them.")
    options = ["-np", str(size)]
    for flag, value in (("-H", hosts), ("--hostfile", hostfile), ("--output-dir", output_filename)):
        options += [flag, value] if value is not None else []
    options += ["--start-timeout", str(start_timeout)] if start_timeout is not None else []
    options += ["--verbose"] if verbose else []
    options += _without_effect(others)
    with temporary_folder("horocache-run-") as folder:
        call = object_collectives.dumps((func, tuple(args), dict(kwargs or {})))
        # sys.path is loaded before the call: without it, the ranks could not import the modules that the function
        # needs.
        (folder / _CALL).write_bytes(object_collectives.dumps((sys.path, call)))
        python = executable or sys.executable
        rank = [python, "-m", "horocache.launch.function", str(folder)]
        launcher = [sys.executable, "-m", "horocache.launch", "--for-run", str(os.getpid()), str(folder)]
        status = _launch([*launcher, *options, *rank], env)
        return _results(folder, size, status)


_SWITCHES = {"use_gloo": "--gloo", "use_mpi": "--mpi", "disable_cache": "--disable-cache"}
_VALUES = {"ssh_port": "--ssh-port", "ssh_identity_file": "--ssh-identity-file"}
_INTERFACES = ("network_interfaces", "network_interface")
_REFUSED = {
    "mpi_args": "horocache does not start mpiexec; start the program with it instead",
    **dict.fromkeys(
        ("min_num_proc", "max_num_proc", "min_np", "max_np", "slots", "reset_limit", "cooldown_range"),
        "elastic jobs are not available",
    ),
    "host_discovery_script": "elastic jobs are not available",
}


def _number_of_ranks(num_proc: Any, np: Any) -> int:
    if num_proc is not None and np is not None and num_proc != np:
        raise InvalidArgumentError(f"num_proc={num_proc} and np={np} contradict each other; give one of them.")
    size = next((number for number in (num_proc, np) if number is not None), 1)
    if not isinstance(size, Integral) or size < 1:
        raise InvalidArgumentError(f"a job needs a whole number of ranks, from 1 on; it is {size!r}.")
    return int(size)


def _refuse(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name in _REFUSED and value is not None and value is not False:
            raise UnsupportedError(f"run({name}={value!r}): {_REFUSED[name]}.")
        if name not in {*_REFUSED, *_SWITCHES, *_VALUES, *_INTERFACES}:
            raise TypeError(f"run() got an unexpected keyword argument {name!r}")


def _without_effect(others: Mapping[str, Any]) -> list[str]:
    """Return the options that the launcher accepts with a note that they have no effect."""
    options = [flag for name, flag in _SWITCHES.items() if others.get(name)]
    options += [f"{flag}={others[name]}" for name, flag in _VALUES.items() if others.get(name) is not None]
    for interfaces in filter(None, map(others.get, _INTERFACES)):
        names = interfaces if isinstance(interfaces, str) else ",".join(interfaces)
        options += ["--network-interfaces", names]
    return options


def _launch(command: Sequence[str], env: Mapping[str, str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    # If sys.stdout is not a descriptor, as in a notebook, the launcher's output must be copied to it.
    out, err = (None if _is_descriptor(s, n) else subprocess.PIPE for s, n in ((sys.stdout, 1), (sys.stderr, 2)))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env)
    copies = [_copy(process.stdout, sys.stdout), _copy(process.stderr, sys.stderr)]
    try:
        return process.wait()
    except BaseException:
        process.terminate()  # the launcher ends its ranks
        process.wait()
        raise
    finally:
        for copy in copies:
            if copy is not None:
                copy.join()


def _is_descriptor(stream: TextIO | None, number: int) -> bool:
    try:
        return stream is not None and stream.fileno() == number
    except (OSError, ValueError, AttributeError):
        return False


def _copy(source: IO[bytes] | None, to: TextIO | None) -> threading.Thread | None:
    if source is None:
        return None

    pipe = source.fileno()

    def copy() -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with source:
            # Copies piece by piece, as a line may have any length or be a progress bar. Reads to the end even if
            # writing fails, so that the ranks never block.
            while data := os.read(pipe, 1 << 16):
                for text in decoder.decode(data).splitlines(keepends=True):
                    with contextlib.suppress(Exception):
                        _write(to, text)
            with contextlib.suppress(Exception):
                _write(to, decoder.decode(b"", final=True))  # the first bytes of an incomplete character

    thread = threading.Thread(target=copy, name="horocache-output", daemon=True)
    thread.start()
    return thread


def _write(to: TextIO | None, text: str) -> None:
    if to is None:
        return
    try:
        to.write(text)
    except UnicodeEncodeError:
        to.write(text.encode("ascii", "backslashreplace").decode())
    to.flush()


def _results(folder: Path, size: int, status: int) -> list[Any]:
    answers: dict[int, tuple[Any, str, bool]] = {}
    for rank in range(size):
        file = folder / _RESULT.format(rank)
        if file.exists():
            answers[rank] = _answer(rank, file.read_bytes())
    # Ranks that failed by themselves come before ranks that failed because of another rank.
    failed = sorted((follows, rank) for rank, (_, trace, follows) in answers.items() if trace)
    silent = [rank for rank in range(size) if rank not in answers]
    if failed and not (silent and failed[0][0]):
        rank = failed[0][1]
        raise RunError(f"rank {rank} of {size} raised\n{answers[rank][1]}")
    if silent or status:
        who = f"rank {', '.join(map(str, silent))} of {size} did not return" if silent else "all ranks returned"
        raise RunError(f"{who}; horocacherun ended with code {status}. See its output.")
    return [answers[rank][0] for rank in range(size)]


def _answer(rank: int, data: bytes) -> tuple[Any, str, bool]:
    result, trace, follows = object_collectives.loads(data)
    try:
        return object_collectives.loads(result), trace, follows
    except Exception as error:
        raise RunError(f"the result of rank {rank} cannot be unpickled: {type(error).__name__}: {error}") from error


def _follows(error: BaseException) -> bool:
    """Return True if this rank failed because of another rank: by its note to the launcher, or its chain of errors."""
    own = own_environment()
    cause = read_cause(Path(own["HOROCACHE_LAUNCHER_DIR"]), int(own["HOROCACHE_RANK"]))
    if cause is not None:
        return cause.follows
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, (PeerLostError, ShutDownError, AbortedError, StallError)):
            return True
        chain = chain.__cause__ or chain.__context__
    return False


def main(folder: Path) -> int:
    """Run one rank: call the function, and store its result or its exception in the folder."""
    failure: Exception | None = None
    try:
        sys.path[:], call = object_collectives.loads((folder / _CALL).read_bytes())
        func, args, kwargs = object_collectives.loads(call)
        answer = (object_collectives.dumps(func(*args, **kwargs)), "", False)
    except Exception as error:
        failure = error
        trace = traceback.format_exc()
        sys.stderr.write(trace)
        answer = (object_collectives.dumps(None), trace, _follows(error))
    file = folder / _RESULT.format(own_environment()["HOROCACHE_RANK"])
    partial = file.with_name(file.name + ".partial")  # a rank killed while it writes leaves no incomplete result
    partial.write_bytes(object_collectives.dumps(answer))
    partial.rename(file)
    if failure is not None and context.running() is not None:  # the other ranks need not wait for the stall inspector
        context.abort(f"it raised {traceback.format_exception_only(failure)[-1].strip()}")
    return 1 if failure is not None else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
