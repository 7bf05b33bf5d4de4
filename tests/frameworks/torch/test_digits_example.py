"""The digits example learns on any number of processes and resumes from its checkpoint."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from horocache.testing import run_ranks

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "torch_digits.py"
PRELOAD = ("sklearn.datasets",)


def run_example(size, *arguments):
    """Run the example on ranks and return the test accuracy that rank 0 prints last."""

    def call_main(path, arguments):
        return runpy.run_path(path)["main"](list(arguments))

    outcomes = run_ranks(call_main, size, args=(str(EXAMPLE), arguments), preload=PRELOAD, timeout=100, check=False)
    assert all(outcome.ok and outcome.value == 0 for outcome in outcomes), [o.describe() for o in outcomes]
    last = outcomes[0].output.strip().splitlines()[-1]
    match = re.fullmatch(r"test accuracy (\d\.\d{3})", last)
    assert match, outcomes[0].output
    return float(match[1])


@pytest.mark.parametrize(("size", "options"), [(2, []), (3, ["--compression", "fp16", "--num-groups", "2"])])
def test_the_example_recognizes_19_of_20_digits(size, options):
    assert run_example(size, *options) >= 0.95


def test_the_example_resumes_from_its_checkpoint(tmp_path):
    file = str(tmp_path / "digits.pt")
    whole = run_example(2, "--epochs", "4")
    first = run_example(2, "--epochs", "2", "--checkpoint", file)
    second = run_example(2, "--epochs", "4", "--checkpoint", file, "--resume")
    assert first < second
    assert second == whole
    assert run_example(2, "--epochs", "4", "--checkpoint", file, "--resume") == whole
