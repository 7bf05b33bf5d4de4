"""Every script of the tutorials runs as it stands, through the launcher, and prints what the page says.

A block that starts with ```python np=N is run with N ranks; `env=NAME=value` sets a variable, `with=OPTION` is for the
launcher. The block ```text output after it holds the output, in any order. A script with `needs=MODULE` is skipped
where the module is not installed; its library may print lines of its own.
"""

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
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


def scripts() -> list[Script]:
    """All scripts of all pages; each Python block must be followed by its output."""
    found = []
    for page in sorted(TUTORIALS.glob("*.md")):
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


@pytest.mark.parametrize("script", scripts(), ids=lambda script: f"{script.page}:{script.line}")
def test_a_script_prints_what_the_page_says(script, tmp_path):
    for module in script.needs:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    path = tmp_path / "script.py"
    path.write_text(script.text, encoding="utf-8")
    launcher = Path(sys.executable).with_name("horocacherun")
    command = [str(launcher), *script.launcher, "-np", str(script.ranks), sys.executable, str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **dict(script.variables)}
    run = {"cwd": tmp_path, "env": environment, "timeout": 100}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **run)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    expected = sorted(script.output.splitlines())
    if script.needs:
        lines = [line for line in lines if line in expected]
    assert sorted(lines) == expected, done.stdout + done.stderr
