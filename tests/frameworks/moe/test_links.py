"""The links between ranks, measured over windows: their fit, and what all ranks get."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import on_ranks

import horocache as hc
from horocache.errors import InvalidArgumentError, MismatchError
from horocache.moe.links import fit_link, measure_links
from horocache.moe.placement import Topology, Workload, shard


def test_a_fit_finds_the_line_behind_the_medians():
    sizes = [64, 4096, 65536, 1 << 20]
    line = [3e-6 + 2e-10 * size for size in sizes]
    times = [[each, each, each * 50, each, each / 2] for each in line]  # the median is not an outlier
    assert fit_link(sizes, times) == pytest.approx((3e-6, 2e-10))
    assert fit_link([1000, 2000], [[2e-6], [3e-6]]) == pytest.approx((1e-6, 1e-9))


@pytest.mark.parametrize("times", [[5e-6, 4e-6, 3e-6], [1e-6, 2e-5, 9e-4], [0.0, 0.0, 0.0], [4e-6, 4e-6, 4e-6]])
def test_a_fit_of_noise_is_positive(times):
    alpha, beta = fit_link([64, 128, 4096], [[each] for each in times])
    assert alpha > 0 and beta > 0 and np.isfinite([alpha, beta]).all()


@pytest.mark.parametrize("exchange", [None, "alltoall"])
@on_ranks(1, 2, 3)
def test_all_ranks_get_the_same_symmetric_links(exchange):
    ranks = hc.size()
    links = measure_links(exchange=exchange, repeats=3)
    for matrix in (links.alpha_s, links.beta_s_per_byte):
        assert matrix.shape == (ranks, ranks) and matrix.dtype == np.float64
        assert (matrix == matrix.T).all() and not matrix.diagonal().any()
        assert (matrix[~np.eye(ranks, dtype=bool)] > 0).all()
        assert hc.allgather_object(matrix.tolist()) == [matrix.tolist()] * ranks
    topology = Topology(links.alpha_s, links.beta_s_per_byte, [1000.0] * ranks, [4] * ranks)
    work = Workload(experts=4, exchanged_bytes=1e6, layers=1, gradient_bytes=1e6)
    assert sorted(device for group in shard(topology, work).groups for device in group) == list(range(ranks))


@on_ranks(4)
def test_a_process_set_has_its_own_links():
    mine = [hc.add_process_set([0, 3]), hc.add_process_set([1, 2])][hc.rank() in (1, 2)]
    links = measure_links(mine, sizes=[64, 640], repeats=2)
    assert links.alpha_s.shape == (2, 2) and links.alpha_s[0, 1] > 0


@on_ranks(2)
def test_arguments_out_of_range_and_differing_ones_are_refused():
    for sizes in ([64], [64, 64], [64, 100], [0, 64], [64, 128.0]):
        with pytest.raises(InvalidArgumentError, match="sizes has"):
            measure_links(sizes=sizes)
    with pytest.raises(InvalidArgumentError, match="repeats is"):
        measure_links(repeats=0)
    with pytest.raises(MismatchError, match="rank 0 has repeats = 2, but rank 1 has 3"):
        measure_links(repeats=2 + hc.rank())
    assert measure_links(repeats=1).alpha_s[0, 1] > 0
