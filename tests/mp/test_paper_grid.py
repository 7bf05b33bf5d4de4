"""The grid of the paper's experiments at a small size: the counters of each cell."""

import json
from pathlib import Path

import pytest

from benchmarks import paper

SMALL = "--planes shm --frameworks numpy --groups 2 --steps 1 --compute-ms 0 --model EfficientNet-B0 --budget-s 0.1"


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, int], dict[str, float]]:
    """The counters of each cell, per step."""
    results = tmp_path_factory.mktemp("results")
    assert paper.main([*SMALL.split(), "--results", str(results)]) == 0
    [lines] = results.glob("paper-*.jsonl")
    figures = [json.loads(line) for line in Path(lines).read_text().splitlines()]
    return {(f["detail"]["cache"], f["detail"]["mode"], f["detail"]["groups"]): f["counters"] for f in figures}


def buffers(counters: dict[str, float]) -> float:
    """The number of fusion buffers in a step."""
    return sum(count for name, count in counters.items() if name.startswith("fused_size_log2."))


def test_every_cell_is_measured_and_cells_without_communication_use_no_buffer(cells):
    assert len(cells) == 2 * 2 * 3
    assert all(buffers(counters) == 0 for (_, _, groups), counters in cells.items() if groups < 0)


def test_two_groups_use_at_most_two_buffers_and_send_all_gradients(cells):
    for (_, _, groups), counters in cells.items():
        if groups == 2:
            assert 1 <= buffers(counters) <= 2
        if groups >= 0:
            assert counters["payload_bytes"] == pytest.approx(21_154_192, rel=0.01)


def test_requests_need_bytes_without_the_cache_and_fewer_with_groups(cells):
    sent = {
        (cache, groups): cells[cache, "event", groups]["control_bytes"] for cache in ("on", "off") for groups in (0, 2)
    }
    assert sent["off", 0] > sent["off", 2] > sent["on", 2]
    assert sent["off", 0] > sent["on", 0]
