"""``horocache.run``: a job from within a program, or a notebook, whose ranks call one of its functions."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

from horocache import _state, objects
from horocache.errors import (
    AbortedError,
    InvalidArgumentError,
    PeerLostError,
    RunError,
    ShutDownError,
    UnsupportedError,
)
from horocache.launch.environment import own_environment

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
    """Start a job whose ranks call ``func(*args, **kwargs)``, wait for it, and return what they returned.

    Works in a script, where it needs no ``if __name__ == "__main__"``, and in a notebook. Ranks are new processes; they
    call ``init()`` themselves. What they print appears here, a line with its rank in front.

    Args:
        func: any function, also a local one or a lambda; pickled by value, with its arguments.
        args: its positional arguments, the same for all ranks.
        kwargs: its keyword arguments.
        num_proc: number of ranks; 1 if neither it nor ``np`` is given.
        np: the same; Horovod's older name.
        hosts: as ``horocacherun -H``: this host.
        hostfile: as ``horocacherun --hostfile``.
        start_timeout: seconds within which all ranks must have called ``init()``.
        output_filename: folder that keeps each rank's output, too.
        verbose: say what is started.
        executable: the Python to run; this one if not given.
        env: environment of the ranks; this process's if not given.
        **others: Horovod's further arguments. ``use_gloo``, ``disable_cache`` and ``network_interface(s)`` have no
            effect on one host. Those for MPI, ssh and elastic jobs are not available.

    Returns:
        The ranks' results, in rank order.

    Raises:
        RunError: a rank raised or died. InvalidArgumentError, ValueError: the function cannot be pickled, or numbers
            contradict each other. UnsupportedError, TypeError: an argument that is not available or not known.
    """
    _refuse(others)
    if num_proc is not None and np is not None and num_proc != np:
        raise InvalidArgumentError(f"num_proc={num_proc} and np={np} contradict each other; give one of them.")
    size = next((number for number in (num_proc, np) if number is not None), 1)
    options = ["-np", str(size)]
    for flag, value in (("-H", hosts), ("--hostfile", hostfile), ("--output-dir", output_filename)):
        options += [flag, value] if value is not None else []
    options += ["--start-timeout", str(start_timeout)] if start_timeout is not None else []
    options += ["--verbose"] if verbose else []
    folder = Path(tempfile.mkdtemp(prefix="horocache-run-"))
    try:
        (folder / _CALL).write_bytes(_pickled(func, tuple(args), dict(kwargs or {})))
        python = executable or sys.executable
        rank = [python, "-m", "horocache.launch.function", str(folder)]
        status = _launch([sys.executable, "-m", "horocache.launch", *options, *rank], env)
        return _results(folder, size, status)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_WITHOUT_EFFECT = {"use_gloo", "disable_cache", "network_interface", "network_interfaces"}
_REFUSED = {
    **dict.fromkeys(("use_mpi", "mpi_args"), "start the program with mpiexec instead"),
    **dict.fromkeys(
        ("ssh_port", "ssh_identity_file"), "remote hosts are not available; start the program with mpiexec"
    ),
    **dict.fromkeys(
        ("min_num_proc", "max_num_proc", "min_np", "max_np", "slots", "reset_limit", "cooldown_range"),
        "elastic jobs are not available",
    ),
    "host_discovery_script": "elastic jobs are not available",
}


def _refuse(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name in _REFUSED and value is not None and value is not False:
            raise UnsupportedError(f"run({name}={value!r}): {_REFUSED[name]}.")
        if name not in _REFUSED and name not in _WITHOUT_EFFECT:
            raise TypeError(f"run() got an unexpected keyword argument {name!r}")


def _pickled(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    module = sys.modules.get(getattr(func, "__module__", None) or "")
    by_value = module if module is not None and module.__name__ != "__main__" and _is_local(module) else None
    return objects.dumps((func, args, kwargs), by_value=by_value)


def _is_local(module: Any) -> bool:
    """Whether ranks may be unable to import it: it is not installed, but was found beside the program."""
    file = getattr(module, "__file__", None)
    return file is not None and not any(part in ("site-packages", "dist-packages") for part in Path(file).parts)


def _launch(command: Sequence[str], env: Mapping[str, str] | None) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    # Where sys.stdout is no descriptor, as in a notebook, what the launcher writes has to be copied there.
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


def _is_descriptor(stream: TextIO, number: int) -> bool:
    try:
        return stream.fileno() == number
    except (OSError, ValueError, AttributeError):
        return False


def _copy(source: IO[bytes] | None, to: TextIO) -> threading.Thread | None:
    if source is None:
        return None

    def copy() -> None:
        with source:
            for line in source:
                to.write(line.decode(errors="replace"))
                to.flush()

    thread = threading.Thread(target=copy, name="horocache-output", daemon=True)
    thread.start()
    return thread


def _results(folder: Path, size: int, status: int) -> list[Any]:
    answers: dict[int, tuple[Any, str, bool]] = {}
    for rank in range(size):
        file = folder / _RESULT.format(rank)
        if file.exists():
            answers[rank] = objects.loads(file.read_bytes())
    # First those that did not fail because another one did.
    failed = sorted((follows, rank) for rank, (_, trace, follows) in answers.items() if trace)
    silent = [rank for rank in range(size) if rank not in answers]
    if failed and not (silent and failed[0][0]):
        rank = failed[0][1]
        raise RunError(f"rank {rank} of {size} raised\n{answers[rank][1]}")
    if silent or status:
        who = f"rank {', '.join(map(str, silent))} of {size} did not return" if silent else "all ranks returned"
        raise RunError(f"{who}; horocacherun ended with code {status}. Its output says why.")
    return [answers[rank][0] for rank in range(size)]


def main(folder: Path) -> int:
    """One rank: call the function, and leave what it returned, or raised, in the folder."""
    status, rank = 0, own_environment()["HOROCACHE_RANK"]
    try:
        func, args, kwargs = objects.loads((folder / _CALL).read_bytes())
        answer = objects.dumps((func(*args, **kwargs), "", False))
    except Exception as error:
        trace = traceback.format_exc()
        sys.stderr.write(trace)
        follows = isinstance(error, (PeerLostError, ShutDownError, AbortedError))
        answer, status = objects.dumps((None, trace, follows)), 1
        if _state.is_initialized():  # the others need not wait for the stall inspector
            _state.abort(f"it raised {type(error).__name__}: {error}")
    file = folder / _RESULT.format(rank)
    partial = file.with_name(file.name + ".partial")  # a rank that is killed while it writes leaves no half result
    partial.write_bytes(answer)
    partial.rename(file)
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
