"""The output of the ranks: prefixes, every byte, progress bars and prompts, output folders, closed streams."""

import os
import select
import signal
import subprocess
import sys
import time

import pytest
from harness import worker_command
from processes import marked

OMP = {"OMP_NUM_THREADS": "1"}


def python(code):
    return [sys.executable, "-c", code]


def test_every_line_carries_the_number_of_its_rank(launcher):
    finished = launcher.run("-np", "3", "bash", "-c", "echo a$RANK; echo; echo b$RANK; echo e$RANK >&2", env=OMP)
    assert finished.code == 0, finished.report()
    for rank in range(3):
        assert finished.of_rank(rank) == [f"a{rank}", "", f"b{rank}"]
        assert f"[{rank}] e{rank}\n" in finished.stderr
    assert len(finished.stdout.splitlines()) == 9


def test_the_prefix_can_be_left_out(launcher):
    finished = launcher.run("-np", "2", "--no-prefix", "echo", "same", env=OMP)
    assert finished.out == b"same\nsame\n"


def test_lines_of_different_ranks_never_mix(launcher):
    code = "import os,sys\nfor i in range(2000): sys.stdout.write(f'{i}:' + os.environ['RANK'] * 60 + chr(10))"
    finished = launcher.run("-np", "4", *python(code), env=OMP)
    for rank in range(4):
        assert finished.of_rank(rank) == [f"{i}:" + str(rank) * 60 for i in range(2000)]


def test_bytes_that_are_no_text_pass_unchanged(launcher):
    code = "import sys; sys.stdout.buffer.write(bytes(b for b in range(256) if b not in (10, 13)) * 50 + b'\\n')"
    finished = launcher.run("-np", "1", *python(code), env=OMP)
    assert finished.out == b"[0] " + bytes(b for b in range(256) if b not in (10, 13)) * 50 + b"\n"


def test_output_without_a_final_line_feed_gets_none(launcher):
    assert launcher.run("-np", "1", "printf", "half", env=OMP).out == b"[0] half"
    assert launcher.run("-np", "1", "--no-prefix", "printf", "a\\r\\n\\n\\rb", env=OMP).out == b"a\r\n\n\rb"


def read_until(process, wanted, deadline_s=15.0):
    """Read stdout until it contains ``wanted``; fail if it ends before."""
    data, limit = b"", time.monotonic() + deadline_s
    while wanted not in data:
        left = limit - time.monotonic()
        assert left > 0, f"{wanted!r} did not come: {data!r}"
        if select.select([process.stdout], [], [], left)[0]:
            piece = os.read(process.stdout.fileno(), 4096)
            assert piece, f"the output ended without {wanted!r}: {data!r}"
            data += piece
    return data


def test_a_progress_bar_shows_while_its_line_is_unfinished(launcher):
    bar = "import sys\nfor i in range(3):\n sys.stdout.write(f'\\r{i}/3')\nsys.stdin.readline()\nprint('\\r3/3 done')"
    job = launcher.start("-np", "1", *python(bar), env=OMP, stdin=subprocess.PIPE)
    assert read_until(job.process, b"2/3") == b"\r[0] 0/3\r[0] 1/3\r[0] 2/3"
    finished = job.finish(20)  # communicate() closes stdin
    assert finished.out == b"\r[0] 3/3 done\n"


def test_a_prompt_shows_and_the_answer_reaches_rank_0_alone(launcher):
    code = "import os,sys\nif os.environ['RANK'] == '0': sys.stdout.write('name? ')\n"
    code += "print('got', repr(sys.stdin.readline()))"
    job = launcher.start("-np", "2", *python(code), env=OMP, stdin=subprocess.PIPE)
    seen = read_until(job.process, b"name? ")
    out, _ = job.process.communicate(b"Ada\n", timeout=20)
    assert b"got 'Ada\\n'" in seen + out
    assert b"[1] got ''" in seen + out


@pytest.mark.parametrize(
    ("ranks", "option"), [(2, "--output-dir"), (1, "--output-filename"), (11, "--output-filename")]
)
def test_the_output_directory_has_the_output_of_each_rank(launcher, ranks, option):
    folder = launcher.scratch / "logs" / "today"
    if ranks == 2:  # files that other jobs have left there
        (folder / "rank.0").mkdir(parents=True)
        (folder / "rank.1").mkdir()
        os.mkfifo(folder / "rank.0" / "stdout")
        (launcher.scratch / "precious").write_text("data")
        (folder / "rank.1" / "stderr").symlink_to(launcher.scratch / "precious")
    code = "printf 'out%s\\r\\377' $RANK; echo err$RANK >&2"
    finished = launcher.run("-np", str(ranks), option, str(folder), "bash", "-c", code, env=OMP)
    assert finished.code == 0, finished.report()
    numbers = [f"{rank:02}" if ranks > 10 else str(rank) for rank in range(ranks)]
    assert sorted(path.name for path in folder.iterdir()) == [f"rank.{number}" for number in numbers]
    for rank, number in enumerate(numbers):
        assert (folder / f"rank.{number}" / "stdout").read_bytes() == f"out{rank}\r".encode() + b"\xff"
        assert (folder / f"rank.{number}" / "stderr").read_bytes() == f"err{rank}\n".encode()
        assert f"[{rank}] err{rank}" in finished.stderr
    assert ranks != 2 or (launcher.scratch / "precious").read_text() == "data"


def test_a_signal_ends_the_job_while_ranks_write_without_line_feeds(launcher):
    code = "import os,sys\nwhile True: os.write(1, b'x' * (1 if os.environ['RANK'] == '0' else 1 << 20))"
    job = launcher.start("-np", "2", "--grace", "2", *python(code), env=OMP)
    read_until(job.process, b"x" * 200_000)
    job.process.send_signal(signal.SIGTERM)
    assert job.finish(30).code == 128 + signal.SIGTERM


def test_a_signal_ends_the_launcher_when_the_output_of_ended_ranks_is_not_read(launcher):
    job = launcher.start("-np", "1", *python("print('x' * 500_000)"), env=OMP)
    limit = time.monotonic() + 20
    while not select.select([job.process.stdout], [], [], 0)[0] or marked(job.mark) != [job.process.pid]:
        assert time.monotonic() < limit
        time.sleep(0.02)
    job.process.send_signal(signal.SIGINT)
    assert job.process.wait(timeout=20) == 128 + signal.SIGINT
    assert job.finish(20).code == 128 + signal.SIGINT


def test_a_reader_that_goes_away_does_not_stop_the_job(launcher):
    code = "import os\nfor i in range(20000): print('x' * 100)\nopen('finished.' + os.environ['RANK'], 'w').close()"
    job = launcher.start("-np", "2", *python(code), env=OMP)
    read_until(job.process, b"[0] xxx")
    job.process.stdout.close()
    job.process.stdout = None
    finished = job.finish(30)
    assert finished.code == 0, finished.report()
    assert "stdout takes no more output (its reader is gone)" in finished.stderr
    assert (launcher.scratch / "finished.0").exists()
    assert (launcher.scratch / "finished.1").exists()


def test_the_environment_has_the_rank_and_the_sizes_of_the_job(launcher):
    names = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE"
    code = f"import os\nprint([os.environ['HOROCACHE_' + n] for n in '{names}'.split()])\n"
    code += "print([os.environ[n] for n in 'RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR'.split()])\n"
    code += "print(os.environ['MASTER_PORT'], os.environ['HOROCACHE_JOB_ID'])"
    finished = launcher.run("-np", "3", *python(code), env=OMP | {"RANK": "9", "TORCHELASTIC_RUN_ID": "outer"})
    shared = {finished.of_rank(rank)[2] for rank in range(3)}
    for rank in range(3):
        assert finished.of_rank(rank)[0] == str([str(rank), "3", str(rank), "3", "0", "1"])
        assert finished.of_rank(rank)[1] == str([str(rank), "3", str(rank), "3", "127.0.0.1"])
    assert len(shared) == 1
    assert 1024 < int(shared.pop().split()[0]) < 65536


def test_cores_are_divided_among_ranks_unless_omp_num_threads_is_set(launcher):
    finished = launcher.run("-np", "2", "--verbose", "bash", "-c", "echo $OMP_NUM_THREADS")
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    assert finished.of_rank(0) == finished.of_rank(1)
    assert 1 <= int(finished.of_rank(1)[0]) <= cores
    assert finished.stderr.count("OMP_NUM_THREADS=") == 1
    assert launcher.run("-np", "2", "true").err == b"", "without --verbose, the launcher prints no note"
    finished = launcher.run("-np", "2", "bash", "-c", "echo $OMP_NUM_THREADS", env={"OMP_NUM_THREADS": "5"})
    assert finished.of_rank(1) == ["5"]
    assert finished.err == b""


def test_binding_gives_each_rank_its_own_cores(launcher):
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    cpus = sorted(os.sched_getaffinity(0))
    finished = launcher.run("-np", "2", "--bind", "core", *python(code), env=OMP)
    bound = [eval(finished.of_rank(rank)[0]) for rank in range(2)]
    assert sorted(set(bound[0] + bound[1])) == cpus
    assert len(cpus) == 1 or not set(bound[0]) & set(bound[1])
    free = launcher.run("-np", "2", *python(code), env=OMP)
    assert eval(free.of_rank(1)[0]) == cpus


def test_more_ranks_than_cores_are_allowed_with_one_note(launcher):
    ranks = len(os.sched_getaffinity(0)) + 1
    finished = launcher.run("-np", str(ranks), "true", env=OMP)
    assert finished.code == 0
    assert finished.stderr.count(f"{ranks} ranks share") == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_a_job_runs_with_closed_standard_streams(launcher, closed):
    prefix = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    arguments = worker_command(2, "sums.py", "5")
    finished = launcher.start(*arguments, prefix=prefix).finish(30)
    assert finished.code == 0, finished.report()


def test_a_full_disk_is_one_warning_and_does_not_stop_the_job(launcher):
    prefix = ["sh", "-c", 'exec "$@" >/dev/full', "sh"]
    finished = launcher.start("-np", "2", "echo", "hi", prefix=prefix).finish(30)
    assert finished.code == 0, finished.report()
    assert finished.stderr.count("stdout takes no more output (No space left on device)") == 1, finished.report()
