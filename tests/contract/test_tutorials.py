"""Every script of the tutorials, and of PAGES, runs through the launcher unchanged and prints the output on its page.

A block that starts with ```python np=N runs with N ranks; `env=NAME=value` sets a variable, and `with=OPTION` is an
option of the launcher. The block ```text output after it holds the output, in any order. A script with `needs=MODULE`
is skipped if the module is not installed; the module may print lines of its own.

Starting ranks and importing a framework takes seconds, so the scripts of a page with equal settings share one job. Each
rank runs them one after the other, and shuts down after each.
"""

import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [*sorted(DOCS.glob("tutorials/*.md")), DOCS / "explanation" / "user_backends.md"]
FENCE = re.compile(r"^```(\w[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Script:
    """One block of a page."""

    page: str
    line: int
    ranks: int
    variables: tuple[tuple[str, ...], ...]
    launcher: tuple[str, ...]
    needs: tuple[str, ...]
    text: str
    output: str

    @property
    def job(self) -> tuple[object, ...]:
        """Equal for scripts that run as one job."""
        return self.page, self.ranks, self.variables, self.launcher, self.needs


def scripts() -> list[Script]:
    """All scripts of all pages; each Python block must be followed by its output."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = list(FENCE.finditer(text))
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            if not block[1].startswith("python"):
                continue
            line = text[: block.start()].count("\n") + 1
            assert following and following[1] == "text output", f"{page.name}:{line}: a script without its output"
            options = [option.partition("=") for option in block[1].split()[1:]]
            [ranks] = [int(value) for name, _, value in options if name == "np"]
            variables = tuple(tuple(value.split("=", 1)) for name, _, value in options if name == "env")
            launcher, needs = (tuple(value for name, _, value in options if name == key) for key in ("with", "needs"))
            found.append(Script(page.name, line, ranks, variables, launcher, needs, block[2], following[2]))
    return found


MARK = "next script"
RUN_ALL = f"""
import runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
    import horocache
    horocache.shutdown()
    print({MARK!r}, flush=True)
"""


def printed(output: str, ranks: int) -> list[list[str]]:
    """The output lines of each script, from all ranks, each with its rank in front."""
    scripts: list[list[str]] = []
    for rank in range(ranks):
        lines = [line for line in output.splitlines() if line.startswith(f"[{rank}] ")]
        for number, line_group in enumerate("\n".join(lines).split(f"[{rank}] {MARK}")):
            if number == len(scripts):
                scripts.append([])
            scripts[number] += filter(None, line_group.splitlines())
    return scripts


@pytest.mark.parametrize(
    "job",
    [list(job) for _, job in itertools.groupby(sorted(scripts(), key=lambda one: str(one.job)), lambda one: one.job)],
    ids=lambda job: f"{job[0].page}:{','.join(str(script.line) for script in job)}",
)
def test_scripts_print_the_output_on_their_page(job, tmp_path):
    first = job[0]
    for module in first.needs:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    paths = [tmp_path / f"script{script.line}.py" for script in job]
    for path, script in zip(paths, job, strict=True):
        path.write_text(script.text, encoding="utf-8")
    (tmp_path / "all.py").write_text(RUN_ALL, encoding="utf-8")
    launcher = Path(sys.executable).with_name("horocacherun")
    command = [str(launcher), *first.launcher, "-np", str(first.ranks), sys.executable, "all.py", *map(str, paths)]
    # For files that scripts leave; tmp_path is too long for the names of sockets.
    with tempfile.TemporaryDirectory(prefix="hc-docs-") as folder:
        environment = {**os.environ, "TMPDIR": folder, "OMP_NUM_THREADS": "1", **dict(first.variables)}
        run = {"cwd": tmp_path, "env": environment, "timeout": 100}
        done = subprocess.run(command, capture_output=True, text=True, check=False, **run)
    assert done.returncode == 0, done.stdout + done.stderr
    *outputs, after_the_last = printed(done.stdout, first.ranks)
    assert not after_the_last
    for script, lines in zip(job, outputs, strict=True):
        expected = sorted(script.output.splitlines())
        shown = [line for line in lines if line in expected] if script.needs else lines
        assert sorted(shown) == expected, f"{script.page}:{script.line}\n{done.stdout}{done.stderr}"
