"""Generated pages are up to date, and links within the documentation are valid."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from horocache import _core

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The fragments of links to a page's headings."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("program", ["generate.py", "stubs.py"])
def test_generated_pages_and_stubs_are_up_to_date(program):
    command = [sys.executable, str(ROOT / "docs" / program), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_existing_targets(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, fragment = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.relative_to(ROOT)} links to {target}, which does not exist"
        assert not fragment or fragment in anchors(path), f"{page.relative_to(ROOT)}: {path.name} has no #{fragment}"


def test_every_decision_is_listed():
    folder = ROOT / "docs" / "decisions"
    listed = set(LINK.findall((folder / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in folder.glob("[0-9]*.md")}


def test_the_page_of_knobs_explains_every_scope():
    head, _, _ = (ROOT / "docs" / "generate.py").read_text(encoding="utf-8").partition("| knob | type |")
    assert set(re.findall(r"[Ss]cope `(\w+)`", head)) == {knob["scope"] for knob in _core.knob_table()}
