"""The examples of docs/explanation/expert_placement.md run, and print what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "expert_placement.md"


def test_the_examples_of_the_guide_print_their_comments(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    lines = [line[4:] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("    ")]
    code = [line for line in lines if not line.startswith("minimise")]
    promised = [line.partition("  # ")[2] for line in code if line.startswith("print(")]
    program = "\n".join(["from horocache.moe.placement import moves, place_experts", *code])
    monkeypatch.chdir(tmp_path)
    exec(compile(program, PAGE.name, "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == promised[0]
    assert printed[1].split() == ["0.150748", "True"] and promised[1].startswith("0.150748 seconds per step, True")
    assert printed[2] == promised[2]
    assert (tmp_path / "sharding.svg").exists()
