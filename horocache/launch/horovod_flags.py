"""How ``horocacherun`` treats each argument of Horovod's launcher, ``horovodrun``: it ignores none silently.

The facts are from Horovod 0.28, ``horovod/runner/launch.py``. ``docs/reference/launcher.md`` is generated from the
table.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Outcome(enum.Enum):
    """How ``horocacherun`` treats an argument."""

    WORKS = "works"
    NOTED = "accepted with a note"
    REFUSED = "refused"


class HorovodFlag(NamedTuple):
    """One argument of ``horovodrun``."""

    spellings: tuple[str, ...]
    outcome: Outcome
    about: str  # its effect here, the note, or why it is refused and what to do instead
    values: int = 1  # number of words that follow it


_WORKS, _NOTED, _REFUSED = Outcome.WORKS, Outcome.NOTED, Outcome.REFUSED
_ELASTIC = "elastic mode is not supported yet; the number of ranks is fixed: -np N"
_LOCAL = "ranks are started on this host, without ssh; start a job on several hosts with mpiexec"
_MPIEXEC = "horocacherun does not start mpirun; start the job with it directly: mpirun -np N python train.py"
_TORUS = "torus allreduce is not supported; --hierarchical-allreduce reduces in two levels"
_SHARED = "ranks of one host talk in shared memory, those of several over MPI"
_AS_ALWAYS = "this is how it is anyway"


def _works(about: str, *spellings: str, values: int = 1) -> HorovodFlag:
    return HorovodFlag(spellings, _WORKS, about, values)


def _noted(about: str, *spellings: str, values: int = 1) -> HorovodFlag:
    return HorovodFlag(spellings, _NOTED, about, values)


def _refused(about: str, *spellings: str, values: int = 1) -> HorovodFlag:
    return HorovodFlag(spellings, _REFUSED, about, values)


TABLE: tuple[HorovodFlag, ...] = (
    _works("prints the version", "-v", "--version", values=0),
    _works("number of ranks", "-np", "--num-proc"),
    _works("lists frameworks, controllers and operations that can be used here", "-cb", "--check-build", values=0),
    _noted("nothing is kept from one run to the next, so there is nothing to disable", "--disable-cache", values=0),
    _works("the knob `start_timeout`", "--start-timeout"),
    _noted("the ranks of one host need no network", "--network-interfaces", "--network-interface"),
    _works("as `--output-dir`: `DIR/rank.N/stdout` and `DIR/rank.N/stderr`", "--output-filename"),
    _works("prints what is started", "--verbose", values=0),
    _works("arguments from a YAML file with Horovod's keys; the command line prevails", "--config-file"),
    _noted(_LOCAL, "-p", "--ssh-port"),
    _noted(_LOCAL, "-i", "--ssh-identity-file"),
    _works("the knob `fusion_threshold`, in MiB", "--fusion-threshold-mb"),
    _works("the knob `cycle_time`", "--cycle-time-ms"),
    _works("the knob `cache_capacity`", "--cache-capacity"),
    _works("the knob `hierarchical_allreduce`", "--hierarchical-allreduce", "--no-hierarchical-allreduce", values=0),
    _works("the knob `hierarchical_allgather`", "--hierarchical-allgather", "--no-hierarchical-allgather", values=0),
    _refused(_TORUS, "--torus-allreduce", values=0),
    _noted(_AS_ALWAYS, "--no-torus-allreduce", values=0),
    _works("the knob `autotune`", "--autotune", "--no-autotune", values=0),
    _works("the knob `autotune_log`", "--autotune-log-file"),
    _works("the knob `autotune_warmup_samples`", "--autotune-warmup-samples"),
    _works("the knob `autotune_steps_per_sample`", "--autotune-steps-per-sample"),
    _works("the knob `autotune_bayes_opt_max_samples`", "--autotune-bayes-opt-max-samples"),
    _works("the knob of this name, which has no effect on the search", "--autotune-gaussian-process-noise"),
    _refused(_ELASTIC, "--min-np", "--min-num-proc"),
    _refused(_ELASTIC, "--max-np", "--max-num-proc"),
    _refused(_ELASTIC, "--slots-per-host"),
    _refused(_ELASTIC, "--elastic-timeout"),
    _refused(_ELASTIC, "--reset-limit"),
    _refused(_ELASTIC, "--blacklist-cooldown-range", values=2),
    _refused(_ELASTIC, "--host-discovery-script"),
    _works("the knob `timeline`; every rank writes a file", "--timeline-filename"),
    _works("the knob `timeline_mark_cycles`", "--timeline-mark-cycles", "--no-timeline-mark-cycles", values=0),
    _works("the knob `stall_check_disable`", "--stall-check", "--no-stall-check", values=0),
    _works("the knob `stall_check_time_seconds`", "--stall-check-warning-time-seconds"),
    _works("the knob `stall_shutdown_time_seconds`", "--stall-check-shutdown-time-seconds"),
    _works("the knob `mpi_threads_disable`", "--mpi-threads-disable", "--no-mpi-threads-disable", values=0),
    _refused(_MPIEXEC, "--mpi-args"),
    _refused(_MPIEXEC, "--tcp", values=0),
    _refused(_MPIEXEC, "--binding-args"),
    _noted("each process set has one stream", "--num-nccl-streams"),
    _refused("use `--bind core`, which gives each rank its own share of the cores", "--thread-affinity"),
    _noted(
        "nothing runs over gloo; `--start-timeout` and `--stall-shutdown-time-seconds` limit waits",
        "--gloo-timeout-seconds",
    ),
    _works("the knob `log_level`", "--log-level"),
    _works("the knob `log_hide_time`", "--log-with-timestamp", "--log-without-timestamp", values=0),
    _works(
        "puts the time in front of each line of output",
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        values=0,
    ),
    _works("this host, and how many ranks it may take", "-H", "--hosts"),
    _works("a file with a line `localhost slots=N`", "-hostfile", "--hostfile"),
    _noted(_SHARED, "--gloo", values=0),
    _noted(_SHARED + " under mpiexec", "--mpi", values=0),
    _refused("start the job with jsrun directly, as with mpirun", "--jsrun", values=0),
)
