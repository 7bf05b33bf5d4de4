"""Every script of the tutorials runs as it stands, through the launcher, and prints what the page says.

A block that starts with ```python np=N is run with N ranks; `env=NAME=value` sets a variable. The block ```text output
after it holds the output, in any order.
"""

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
            found.append(Script(page.name, line, ranks, variables, block[2], following[2]))
    return found


@pytest.mark.parametrize("script", scripts(), ids=lambda script: f"{script.page}:{script.line}")
def test_a_script_prints_what_the_page_says(script, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(script.text, encoding="utf-8")
    launcher = Path(sys.executable).with_name("horocacherun")
    command = [str(launcher), "-np", str(script.ranks), sys.executable, str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **dict(script.variables)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert sorted(lines) == sorted(script.output.splitlines()), done.stdout + done.stderr
