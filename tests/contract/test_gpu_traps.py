"""Every test that docs/explanation/gpu_traps.md names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_tests_of_the_traps_exist():
    page = (ROOT / "docs" / "explanation" / "gpu_traps.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    suites = "".join(path.read_text() for path in (ROOT / "tests" / "cpp").rglob("*_test.cc"))
    in_python = set(re.findall(r"`(test_\w+)`", page))
    in_cpp = {tuple(name.split(".")) for name in re.findall(r"`(\w+Test(?:\.\w+)?)`", page)}
    missing = [name for name in in_python if f"def {name}(" not in tests]
    missing += [".".join(name) for name in in_cpp if not re.search(rf"TEST\w*\({', '.join(name)}", suites)]
    assert len(in_python) > 15 and len(in_cpp) > 10 and not missing, missing
