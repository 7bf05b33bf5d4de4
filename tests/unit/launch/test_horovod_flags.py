"""Every argument of horovodrun, the YAML file, the hostfile and --check-build."""

import subprocess

import pytest

from horocache import _core
from horocache.base.usage import UsageError
from horocache.launch import check_build
from horocache.launch.flags import build_parser, knob_arguments, parse
from horocache.launch.horovod_flags import TABLE, Outcome
from horocache.launch.hosts import count_ranks

KNOBS = list(_core.knob_table())
# Read from `horovodrun --help` of 0.28; both spellings of a switch count as one argument.
HOROVODRUN = set(
    """
-v --version -np --num-proc -cb --check-build --disable-cache --start-timeout --network-interfaces --output-filename
--verbose --config-file -p --ssh-port -i --ssh-identity-file --fusion-threshold-mb --cycle-time-ms --cache-capacity
--hierarchical-allreduce --no-hierarchical-allreduce --hierarchical-allgather --no-hierarchical-allgather
--torus-allreduce --no-torus-allreduce --autotune --no-autotune --autotune-log-file --autotune-warmup-samples
--autotune-steps-per-sample --autotune-bayes-opt-max-samples --autotune-gaussian-process-noise --min-np --min-num-proc
--max-np --max-num-proc --slots-per-host --elastic-timeout --reset-limit --blacklist-cooldown-range
--host-discovery-script --timeline-filename --timeline-mark-cycles --no-timeline-mark-cycles --stall-check
--no-stall-check --stall-check-warning-time-seconds --stall-check-shutdown-time-seconds --mpi-threads-disable
--no-mpi-threads-disable --mpi-args --tcp --binding-args --num-nccl-streams --thread-affinity --gloo-timeout-seconds
--log-level --log-with-timestamp --log-without-timestamp -prefix-timestamp --prefix-output-with-timestamp -H --hosts
-hostfile --hostfile --gloo --mpi --jsrun
""".split()  # noqa: SIM905  (shorter than a list)
)

VALUES = {"--log-level": "info", "-H": "localhost:2", "--hosts": "localhost:2", "--blacklist-cooldown-range": "1 2"}


def options_of(*arguments):
    return parse(build_parser(KNOBS, "1"), [*arguments, "command"])


def knobs_of(*arguments):
    return knob_arguments(options_of(*arguments), KNOBS)


def test_the_table_has_every_argument_of_horovodrun():
    assert {spelling for flag in TABLE for spelling in flag.spellings} >= HOROVODRUN


@pytest.mark.parametrize("flag", TABLE, ids=lambda flag: flag.spellings[-1])
def test_each_argument_has_the_outcome_of_the_table(flag, tmp_path):
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    for spelling in flag.spellings:
        default = str(empty) if spelling == "--config-file" else "1"
        words = [spelling, *VALUES.get(spelling, default).split()[: flag.values]] if flag.values else [spelling]
        if spelling in ("-v", "--version"):
            with pytest.raises(SystemExit):
                options_of(*words)
        elif flag.outcome is Outcome.REFUSED:
            with pytest.raises(UsageError, match="is not available: ") as caught:
                options_of(*words)
            assert str(caught.value) == f"{spelling} is not available: {flag.about}"
        else:
            options = options_of(*words)
            assert options.command == ["command"]
            assert (options.notes != []) is (flag.outcome is Outcome.NOTED)
            default = build_parser(KNOBS, "1").parse_args(["command"])
            assert vars(options) != vars(default)


def test_the_command_line_overrides_the_configuration_file(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "controller: gloo\n"
        "params:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 2.5\n  hierarchical_allreduce: true\n"
        "stall_check:\n  enabled: false\n  warning_time_seconds: 7\n"
        "logging:\n  level: debug\n  with_timestamp: true\n"
        "library_options:\n  mpi_threads_disable: false\n  num_nccl_streams: 2\n"
    )
    want = {
        "fusion_threshold": str(32 << 20),
        "cycle_time": "2.5",
        "hierarchical_allreduce": "1",
        "stall_check_disable": "1",
        "stall_check_time_seconds": "7",
        "log_level": "debug",
        "log_hide_time": "0",
        "mpi_threads_disable": "0",
    }
    assert knobs_of("--config-file", str(file)) == want
    assert knobs_of("--cycle-time-ms", "9", "--config-file", str(file), "--stall-check") == {
        **want,
        "cycle_time": "9",
        "stall_check_disable": "0",
    }
    assert [note.split()[0] for note in options_of("--config-file", str(file)).notes] == [
        "--gloo",
        "--num-nccl-streams",
    ]


def test_values_that_a_file_does_not_set_stay_unset(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "controller:\nparams:\n  cycle_time_ms: null\ntimeline:\n"
        "autotune:\n  enabled: false\n  log_file: x.txt\n  warmup_samples: 5\n"
    )
    assert knobs_of("--config-file", str(file)) == {"autotune": "0"}
    file.write_text("controller: GLOO\n")
    assert options_of("--config-file", str(file)).notes[0].startswith("--gloo has no effect")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("params: [", "is not YAML"),
        ("- 1", "expected sections"),
        ("parms:\n  cycle_time_ms: 1", "no section 'parms'; did you mean 'params'?"),
        ("params:\n  cycle_time: 1", "no key 'cycle_time'; did you mean 'cycle_time_ms'?"),
        ("params: 3", "section 'params' has keys and values, not '3'"),
        ("params:\n  hierarchical_allreduce: 7", "params.hierarchical_allreduce is '7'; it is true or false"),
        ("controller: tcp", "controller is 'tcp'; it is one of gloo, mpi, jsrun"),
        ("autotune:\n  enabled: perhaps", "autotune.enabled is 'perhaps'; it is true or false"),
        ("params:\n  fusion_threshold_mb: much", "'much' is not a number of MiB"),
    ],
)
def test_an_invalid_file_is_an_error_that_names_the_place(tmp_path, text, words):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        options_of("--config-file", str(file))
    assert words in str(caught.value)


def test_a_missing_file_is_an_error():
    with pytest.raises(UsageError, match="No such file"):
        options_of("--config-file", "nowhere/config.yaml")


def test_a_hostfile_counts_slots(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# hosts\n\nlocalhost slots=2\n127.0.0.1 slots=1  # again\n")
    assert count_ranks(None, None, str(file)) == 3
    assert count_ranks(2, None, str(file)) == 2
    with pytest.raises(UsageError, match="-np 4 is more than the 3 slots in --hostfile"):
        count_ranks(4, None, str(file))
    with pytest.raises(UsageError, match="-H and --hostfile are both given"):
        count_ranks(1, "localhost:1", str(file))
    for text, words in [
        ("localhost slots=x", "line 1: expected 'HOST slots=N'"),
        ("", "names no host"),
        ("elsewhere slots=2", "the host 'elsewhere'"),
    ]:
        file.write_text(text)
        with pytest.raises(UsageError, match=words):
            count_ranks(None, None, str(file))
    with pytest.raises(UsageError, match="No such file"):
        count_ranks(None, None, "nowhere/hosts")


def test_check_build_lists_frameworks_and_backends():
    text = check_build.report("1.2")
    assert text.startswith("horocache v1.2:\n")
    for line in ("[X] PyTorch", "[ ] MXNet", "[X] shared memory", "[ ] Gloo"):
        assert line in text


def a_library(path, knob, functions, monkeypatch):
    source = path.with_suffix(".c")
    source.write_text(functions)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    monkeypatch.setenv(knob, str(path))


@pytest.mark.parametrize(
    ("version", "error", "mark"),
    [(23007, 0, "X"), (23004, 0, "X"), (21200, 0, " "), (23007, 100, " ")],  # 2.30.4: a warning; 2.12: too old
)
def test_check_build_tells_whether_jobs_can_use_nccl(tmp_path, monkeypatch, version, error, mark):
    nccl = f"int ncclGetVersion(int* version) {{ *version = {version}; return 0; }}"
    cuda = f"""int cuInit(unsigned flags) {{ return {error}; }}
               int cuDriverGetVersion(int* version) {{ *version = 13000; return 0; }}
               int cuDeviceGetCount(int* count) {{ *count = 1; return 0; }}"""
    a_library(tmp_path / "libnccl.so.2", "HOROCACHE_NCCL_LIBRARY", nccl, monkeypatch)
    a_library(tmp_path / "libcuda.so.1", "HOROCACHE_CUDA_LIBRARY", cuda, monkeypatch)
    assert f"[{mark}] NCCL" in check_build.report("1.2")


def test_check_build_without_nccl(monkeypatch):
    monkeypatch.setenv("HOROCACHE_NCCL_LIBRARY", "libnccl-none.so.2")
    assert "[ ] NCCL" in check_build.report("1.2")
