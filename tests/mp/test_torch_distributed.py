"""Programs that use only the API of torch.distributed, under several launchers."""

import json
import re
import shutil

import pytest
from harness import REPOSITORY, WORKERS

PROGRAM = str(WORKERS / "torch_program.py")
OMP = {"OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.usefixtures("needs_torch")


@pytest.fixture
def announced(tmp_path) -> dict[str, str]:
    """Package metadata with the entry points of pyproject.toml, independent of the installation."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    [points] = re.findall(r'^\[project\.entry-points\."torch\.backends"\]\n((?:.+\n)+)', text, re.MULTILINE)
    folder = tmp_path / "announcement-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: announcement\nVersion: 0\n")
    (folder / "entry_points.txt").write_text("[torch.backends]\n" + points.replace('"', ""))
    return {"PYTHONPATH": f"{REPOSITORY}:{tmp_path}"}


def check(finished, reports, ranks):
    assert finished.code == 0, finished.report()
    for facts in reports:
        mean = (ranks - 1) / 2
        assert (facts["value"], facts["gradient"], facts["size"]) == (ranks * (ranks + 1) / 2, mean, ranks)
        assert facts["imported"] == []


def test_horocacherun_runs_a_program_that_ends_with_operations_in_flight(launcher, announced):
    finished = launcher.worker(2, "torch_program.py", "open", env=announced, deadline_s=90)
    check(finished, [finished.reports_of(rank)["sums"] for rank in range(2)], 2)
    assert "Traceback" not in finished.stderr and "terminate" not in finished.stderr, finished.report()


def test_torchrun_runs_the_program(launcher, announced):
    arguments = ["--nproc-per-node", "2", "--standalone", PROGRAM]
    finished = launcher.run(*arguments, module="torch.distributed.run", env=OMP | announced, deadline_s=90)
    reports = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("{")]
    check(finished, reports, 2)
    assert sorted(facts["local_rank"] for facts in reports) == ["0", "1"]
    for logs in launcher.tmp.glob("torchelastic_*"):  # logs that torchrun leaves
        shutil.rmtree(logs)


def test_a_rank_that_raises_is_named_by_the_others(launcher, announced):
    finished = launcher.worker(2, "torch_program.py", "raise", env=announced, deadline_s=90)
    assert finished.code != 0, finished.report()
    assert "rank 1 of 2 failed first: it exited with code 1" in finished.stderr, finished.report()
    error = r"\[0\].*AbortedError: .*rank 1 .*ValueError: the data are bad"
    assert re.search(error, finished.stderr), finished.report()


def test_a_program_without_the_backend_does_not_load_horocache(launcher, announced):
    program = (
        "import sys, torch, torch.distributed as dist\n"
        "assert dist.is_backend_available('horocache') and not dist.Backend._plugins\n"
        "names = sorted(name for name in sys.modules if name.startswith('horocache.'))\n"
        "assert names == ['horocache.errors', 'horocache.torch_entry_point'], names\n"
        "dist.init_process_group('cpu:gloo,cuda:gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "assert dist.group.WORLD.name() == 'gloo'\n"
        "dist.destroy_process_group()\n"
        "assert dist.Backend('HoroCache') == 'horocache' and list(dist.Backend._plugins) == ['HOROCACHE']\n"
    )
    finished = launcher.run("-c", program, module=None, env=announced)
    assert (finished.code, finished.stderr) == (0, ""), finished.report()
    without = announced | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    program = (
        "import torch.distributed as dist\n"
        "assert not dist.is_backend_available('horocache')\n"
        "import horocache.torch\n"
        "assert dist.is_backend_available('horocache')\n"
    )
    finished = launcher.run("-c", program, module=None, env=without)
    assert finished.code == 0, finished.report()
