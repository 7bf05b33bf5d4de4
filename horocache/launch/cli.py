"""``horocacherun``: from the command line to a supervised job."""

import contextlib
import os
import resource
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from horocache import compat
from horocache.base.gpus import count_gpus
from horocache.base.processors import Cores, cpus_of_ranks, find_cores
from horocache.base.usage import UsageError, complain, open_standard_streams, reader_is_gone
from horocache.core.launcher_environment import (
    JobEnvironment,
    find_program,
    inherited,
    new_job_id,
    own_environment,
    reserve_port,
    threads_per_rank,
)
from horocache.launch.flags import Knob, build_parser, knob_arguments, parse
from horocache.launch.folders import remove_if_ours, temporary_folder
from horocache.launch.hosts import count_ranks
from horocache.launch.job import Job
from horocache.launch.lifeline import Lifeline
from horocache.launch.output import Prefix, Sink, same_file
from horocache.launch.rank import RankProcess, start_rank
from horocache.launch.signals import end_with
from horocache.launch.watch import Guardian


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``horocacherun`` and return its exit code."""
    open_standard_streams()
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return reader_is_gone()
    except UsageError as error:
        complain("horocacherun", str(error))
        return error.status
    except KeyboardInterrupt:  # before the first rank is started; from then on, signals are read from a pipe
        return 130


def _run(arguments: Sequence[str]) -> int:
    from horocache.errors import InvalidArgumentError  # noqa: PLC0415  (a broken installation must give one line, too)

    core = _load_core()
    table: list[Knob] = list(core.knob_table())
    parser = build_parser(table, core.__version__)
    options = parse(parser, arguments)
    if options.check_build:
        from horocache.launch import check_build  # noqa: PLC0415  (it looks for libraries, which no job waits for)

        sys.stdout.write(check_build.report(core.__version__))
        return 0
    size = count_ranks(options.np, options.hosts, options.hostfile)
    if not options.command:
        raise UsageError("no program to run. Put it last: horocacherun -np 2 python train.py")
    if not options.command[0]:
        raise UsageError("the command's first word is empty")
    program = _find(options.command[0])
    knobs = knob_arguments(options, table)
    try:
        settings = core.parse_knobs(knobs)
    except InvalidArgumentError as error:
        raise UsageError(str(error)) from error
    _check_descriptors(size)
    caller, folder = options.for_run or ("", "")
    if caller:
        end_with(int(caller))
    meets_here = not settings["rendezvous_dir"][0]
    try:
        with contextlib.ExitStack() as stack:
            try:
                directory = stack.enter_context(temporary_folder("horocache-"))
            except OSError as error:
                advice = "set TMPDIR to a folder that has room"
                raise UsageError(f"cannot make a temporary folder: {error.strerror}; {advice}", 1) from error
            return _launch(options, size, program, knobs, str(directory), meets_here=meets_here)
    finally:
        if settings["timeline"][0]:
            from horocache.observe.trace import remove_spares  # noqa: PLC0415  (few jobs have one)

            remove_spares(Path(settings["timeline"][0]), size)
        if caller and os.getppid() != int(caller):
            remove_if_ours(Path(folder))  # the caller, which would remove the folder, is gone


def _launch(
    options: Namespace, size: int, program: str, knobs: Mapping[str, str], directory: str, *, meets_here: bool
) -> int:
    sinks = _sinks()
    cores = find_cores()
    own = own_environment()
    output_dir = _output_dir(options.output_dir)
    with reserve_port() as port:
        environment = JobEnvironment(
            base=own,
            size=size,
            job=new_job_id(),
            port=port.getsockname()[1],
            directory=directory,
            meets_here=meets_here,
            knobs=knobs,
            threads=threads_per_rank(own, cores.usable, size),
            packages=compat.PACKAGES if options.horovod else "",
            output_dir=str(output_dir.absolute()) if output_dir is not None else "",
            outer=_load_core().launcher_variables(inherited(own)),
        )
        for line in startup_notes(environment, cores, options):
            sinks[1].line("horocacherun: " + line)
        shares = cpus_of_ranks(cores.cpus, size) if options.bind == "core" else None

        def start(rank: int) -> RankProcess:
            return start_rank(
                rank,
                program,
                options.command,
                environment=environment.of_rank(rank),
                cpus=shares[rank] if shares is not None else None,
                lifeline=lifeline,
                sinks=sinks,
                prefix=Prefix(b"" if options.no_prefix else b"[%d] " % rank, options.timestamps),
                output_folder=environment.output_folder(rank),
            )

        lifeline = Lifeline()
        guardian = Guardian(environment.job, options.grace, directory, lifeline)
        try:
            return Job(environment.job, size, options.grace, sinks, guardian, Path(directory)).run(start)
        finally:
            guardian.dismiss()
            lifeline.close()


def startup_notes(environment: JobEnvironment, cores: Cores, options: Namespace) -> list[str]:
    """Return the lines that the launcher prints before it starts the ranks."""
    size = environment.size
    notes = list(options.notes)
    # In a log file, this line would be clutter. A single rank shares no cores.
    shares_cores = environment.threads is not None and environment.threads < cores.usable
    if environment.threads is not None and (options.verbose or (shares_cores and os.isatty(2))):
        share = f"OMP_NUM_THREADS={environment.threads} for each of {size} rank{'s' if size > 1 else ''} on {cores}"
        notes.append(f"{share}; set it to choose otherwise")
    if size > cores.usable:
        notes.append(f"{size} ranks share {cores}: they take turns, and waiting threads do not spin")
    gpus = count_gpus(environment.base.get("CUDA_VISIBLE_DEVICES"))
    if 0 < gpus < size:
        notes.append(
            f"{size} ranks share {gpus} GPU{'s' if gpus > 1 else ''}: NCCL takes several ranks on one GPU from version "
            "2.30.3 on, with NCCL_MULTI_RANK_GPU_ENABLE=1; else their CUDA tensors go by way of the host"
        )
    if options.verbose:
        what = f"{size} ranks of {shlex.join(options.command)}"
        notes.append(f"job {environment.job}: {what}, MASTER_PORT={environment.port}")
    return notes


def _sinks() -> tuple[Sink, Sink]:
    out = Sink(1)
    return (out, out) if same_file(1, 2) else (out, Sink(2))


def _find(command: str) -> str:
    program, status = find_program(command, own_environment().get("PATH"))
    if program is not None:
        return program
    if status == 126:
        raise UsageError(f"'{command}' cannot be executed: it is a directory or has no execute permission", status)
    hint = f" Did you mean: python {command}?" if command.endswith(".py") else ""
    where = "there is no such file" if "/" in command else "it is in no directory of PATH"
    raise UsageError(f"command '{command}' not found: {where}.{hint}", status)


def _check_descriptors(size: int) -> None:
    needed, (limit, _) = 2 * size + 32, resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise UsageError(f"{size} ranks need {needed} file descriptors, the limit is {limit}: ulimit -n {needed}", 1)


def _output_dir(name: str | None) -> Path | None:
    if name is None:
        return None
    folder = Path(name).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output-dir {name}: {error.strerror}") from error
    return folder


def _load_core() -> Any:
    try:
        from horocache import _core  # noqa: PLC0415
    except ImportError as error:
        fix = "install it again: pip install --force-reinstall horocache"
        raise UsageError(f"horocache's core cannot be loaded ({error}); {fix}", 1) from error
    return _core
