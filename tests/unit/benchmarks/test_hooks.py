"""The benchmark of hooks: the stopwatch, the count of instructions, and the table."""

import shutil
from pathlib import Path

import pytest

from benchmarks import goals, instructions
from benchmarks.cases import hooks
from benchmarks.figures import Figure, Series, merge
from benchmarks.job import JobError


def figures(counted: bool) -> list[Figure]:
    series = [
        Series(case, impl, "us", [2e-6, 4e-6, 6e-6])
        for impl in ("horocache", "horocache, 5 groups")
        for case in (hooks.CPU, hooks.ELAPSED)
    ]
    found = merge("hooks", 2, [series])
    return found + (
        merge("hooks", 1, [[Series(hooks.COUNTED, "horocache", "instructions", [10200.0])]]) if counted else []
    )


def test_the_table_has_a_column_of_instructions_if_they_were_counted() -> None:
    [table] = hooks.tables(figures(counted=True))
    assert table.columns == ["implementation", hooks.CPU, hooks.ELAPSED, hooks.COUNTED]
    assert table.rows == [
        ["horocache", "4 (3 .. 5)", "4 (3 .. 5)", "10,200"],
        ["horocache, 5 groups", "4 (3 .. 5)", "4 (3 .. 5)", ""],
    ]


def test_without_valgrind_the_table_has_a_note_instead_of_the_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert hooks.local(False, frozenset({"horocache"})) == []
    [table] = hooks.tables(figures(counted=False))
    assert hooks.COUNTED not in table.columns
    assert "No instructions: there is no valgrind (Debian: apt-get install valgrind)." in table.note


def test_the_goal_limits_the_processor_time() -> None:
    rows = goals.judge(figures(counted=True)).rows
    assert [row[1:] for row in rows] == [[hooks.CPU, "<= 5", "4", "met"]]


def test_the_sum_is_read_from_callgrinds_file() -> None:
    assert instructions.total("events: Ir\nsummary: 12\n\nfn=(1)\n3 4\ntotals: 16529246\n") == 12
    assert instructions.total("events: Ir\nfn=(1)\n3 4\n\ntotals: 16529246\n") == 16529246
    with pytest.raises(JobError, match="neither totals"):
        instructions.total("events: Ir\n")


def test_instructions_are_counted_for_each_library() -> None:
    text = """events: Ir
ob=(1) /lib/libtorch.so
fn=(1) one
12 5
+3 7
cob=(2) /lib/libc.so.6
cfn=(2) two
calls=3 9
* 900
-1 2

ob=(2)
fn=(2)
9 900
totals: 914
"""
    assert instructions.of_objects(text) == {"libtorch.so": 14, "libc.so.6": 900}


def test_the_first_steps_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], *_: object) -> str:
        steps = int(command[-1])
        path = next(part.split("=", 1)[1] for part in command if part.startswith("--callgrind-out-file="))
        Path(path).write_text(f"totals: {1_000_000 + steps * 300 * 50}\n")
        return "300\n"

    monkeypatch.setattr(instructions, "run_command", run)
    assert instructions.per_hook() == 50.0


def test_a_torch_that_calls_hooks_in_another_function_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], *_: object) -> str:
        path = next(part.split("=", 1)[1] for part in command if part.startswith("--callgrind-out-file="))
        Path(path).write_text("totals: 0\n")
        return "300\n"

    monkeypatch.setattr(instructions, "run_command", run)
    with pytest.raises(JobError, match="calls hooks elsewhere"):
        instructions.per_hook()


def test_the_stopwatch_measures_the_hooks_between_its_own_hooks() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(2, 2)
    watch = hooks.Stopwatch()
    order: list[str] = []
    watch.before(layer)
    for parameter in layer.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: order.append("ours"))
    watch.after()
    layer(torch.ones(1, 2)).sum().backward()
    watch.end_step()
    [(cpu, elapsed)] = watch.steps
    assert order == ["ours", "ours"]
    assert cpu > 0 and elapsed > 0
    with pytest.raises(AssertionError, match="0 of 2 hooks were called"):
        watch.end_step()
