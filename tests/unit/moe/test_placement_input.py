"""Bad topologies and workloads are errors that name the place and the value."""

from __future__ import annotations

import numpy as np
import pytest

from horocache.errors import InvalidArgumentError
from horocache.moe.placement import Topology, Workload, shard


def topology(**changes):
    arguments = {
        "alpha_s": np.full((3, 3), 1e-6),
        "beta_s_per_byte": np.full((3, 3), 1e-9),
        "rates": [1.0, 2.0, 3.0],
        "memory": [1, 2, 3],
    }
    return Topology(**{**arguments, **changes})


def changed(value, place=(1, 2)):
    matrix = np.full((3, 3), 1e-6)
    matrix[place] = value
    return matrix


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("alpha_s", changed(np.nan), r"alpha_s\[1, 2\] is nan; it must be finite and at least 0"),
        ("alpha_s", changed(-1e-6), r"alpha_s\[1, 2\] is -1e-06; it must be finite and at least 0"),
        ("beta_s_per_byte", changed(np.inf), r"beta_s_per_byte\[1, 2\] is inf"),
        ("alpha_s", np.zeros((2, 3)), r"alpha_s has shape \(2, 3\); it must be \(3, 3\): a row and a column"),
        ("beta_s_per_byte", np.zeros(9), r"beta_s_per_byte has shape \(9,\)"),
        ("alpha_s", [["a"] * 3] * 3, "alpha_s must be an array of numbers: its element type is"),
        ("alpha_s", np.zeros((3, 3), complex), "alpha_s must be an array of numbers: its element type is complex128"),
        ("alpha_s", [[1], [1, 2]], "alpha_s must be an array of numbers"),
        ("rates", [1.0, 0.0, 1.0], r"rates\[1\] is 0.0; it must be finite and above 0"),
        ("rates", [1.0, 1.0, np.nan], r"rates\[2\] is nan"),
        ("rates", [], r"rates has shape \(0,\); it must be \(n,\), with n of at least 1 device"),
        ("rates", 1.0, r"rates has shape \(\)"),
        ("memory", [1, -2, 3], r"memory\[1\] is -2; it must be at least 0"),
        ("memory", [1, 2], r"memory has shape \(2,\); it must be \(3,\): one number of experts"),
        ("memory", [1.5, 2, 3], "memory must be an array of whole numbers: its element type is float64"),
        ("memory", [True, True, False], "memory must be an array of whole numbers: its element type is bool"),
    ],
)
def test_topologies(argument, value, message):
    with pytest.raises(InvalidArgumentError, match=message):
        topology(**{argument: value})


def test_the_diagonal_is_not_used_and_the_arrays_are_copies():
    matrix = changed(np.nan, (1, 1))
    made = topology(alpha_s=matrix)
    assert np.isnan(matrix[1, 1])
    assert made.alpha_s[1, 1] == 0.0 and made.alpha_s.dtype == np.float64 and made.memory.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        made.alpha_s[0, 1] = 3.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts": 0}, "experts is 0; it must be a whole number of at least 1"),
        ({"experts": 2.0}, r"experts is 2.0; it must be a whole number"),
        ({"experts": True}, "experts is True"),
        ({"layers": -1}, "layers is -1"),
        ({"transfers": 0}, "transfers is 0"),
        ({"exchanged_bytes": -1.0}, "exchanged_bytes is -1.0; it must be finite and at least 0"),
        ({"exchanged_bytes": np.nan}, "exchanged_bytes is nan"),
        ({"gradient_bytes": np.inf}, "gradient_bytes is inf"),
        ({"gradient_bytes": "1M"}, "gradient_bytes is '1M'; it must be a number of bytes"),
        ({"gradient_bytes": None}, "gradient_bytes is None"),
    ],
)
def test_workloads(changes, message):
    arguments = {"experts": 4, "exchanged_bytes": 1e6, "layers": 2, "gradient_bytes": 1e6, **changes}
    with pytest.raises(InvalidArgumentError, match=message):
        Workload(**arguments)


@pytest.mark.parametrize(
    ("cluster", "work"),
    [
        ({"alpha_s": np.full((3, 3), 1e308)}, Workload(4, 0, 1, 0)),
        ({"beta_s_per_byte": np.full((3, 3), 1e300)}, Workload(4, 1e10, 1, 0)),
        ({"rates": [1.0, 1e-320, 1.0]}, Workload(4, 0, 1, 0)),
    ],
)
def test_times_that_overflow_are_an_error(cluster, work):
    with pytest.raises(InvalidArgumentError, match="too large to compare"):
        shard(topology(**cluster), work)


def test_counts_of_numpy_are_whole_numbers():
    work = Workload(np.int64(4), np.float32(8.0), np.int32(2), 0)
    assert (work.experts, work.exchanged_bytes, work.layers, work.transfers) == (4, 8.0, 2, 4)
