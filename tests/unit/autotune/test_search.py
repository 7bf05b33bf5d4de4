"""The search of autotune on synthetic surfaces: speeds as a function of the settings, without any job."""

from __future__ import annotations

import itertools
import math
import random
import sys

import pytest

from horocache.autotune.search import Search
from horocache.autotune.space import CYCLE_TIMES, FUSION_THRESHOLDS, NUM_GROUPS, Parameter
from horocache.errors import InvalidArgumentError, UnsupportedError

pytest.importorskip("optuna")

SPACE = (
    Parameter("fusion_threshold", FUSION_THRESHOLDS, FUSION_THRESHOLDS[-1]),
    Parameter("cycle_time", CYCLE_TIMES, 1.0),
    Parameter("cache", (1, 0), 1),
    Parameter("num_groups", NUM_GROUPS, 0),
)
STEP_BYTES = 100 << 20


def slow_link(point):
    """Each operation costs a delay; one group leaves everything exposed, and many gradients are many operations."""
    threshold, groups = point["fusion_threshold"], point["num_groups"]
    operations = max(groups or 27, STEP_BYTES / threshold if threshold else 161)
    communication = operations * (1.5 if point["cache"] else 2) + 60
    exposed = max(60 / (groups or 27), communication - 55) + 0.3 * point["cycle_time"]
    return STEP_BYTES / (60 + exposed + (0 if groups else 2 / point["cycle_time"]))


def inside_a_host(point):
    """A smooth hill whose top is away from the default in each setting."""
    threshold = FUSION_THRESHOLDS.index(point["fusion_threshold"]) / 8
    cycle, groups = CYCLE_TIMES.index(point["cycle_time"]) / 8, NUM_GROUPS.index(point["num_groups"]) / 6
    hill = 2 * (threshold - 0.6) ** 2 + 1.5 * (cycle - 0.3) ** 2 + 0.8 * (groups - 0.9) ** 2
    return 1e9 / (1 + hill + 0.2 * (1 - point["cache"]))


def best_of_grid(surface, space=SPACE):
    names = [each.name for each in space]
    return max(
        surface(dict(zip(names, values, strict=True))) for values in itertools.product(*[p.values for p in space])
    )


def run(surface, samples, seed=0, noise=0.0):
    """Search; return the search and the measured points."""
    search, chance = Search(SPACE, samples, seed), random.Random(seed)
    points, point = [], search.point
    while point is not None:
        points.append(tuple(point.values()))
        point = search.tell(surface(point) * chance.gauss(1, noise))
    return search, points


@pytest.mark.parametrize("surface", [slow_link, inside_a_host])
@pytest.mark.parametrize("seed", range(4))
def test_sixty_samples_end_within_three_per_cent_of_an_exhaustive_grid(surface, seed):
    search, _ = run(surface, 60, seed)
    assert surface(search.result.point) >= 0.97 * best_of_grid(surface)


@pytest.mark.parametrize("surface", [slow_link, inside_a_host])
def test_the_usual_samples_and_seed_end_within_three_per_cent_of_an_exhaustive_grid(surface):
    search, _ = run(surface, 20)
    assert surface(search.result.point) >= 0.97 * best_of_grid(surface)


@pytest.mark.parametrize("surface", [slow_link, inside_a_host])
def test_the_usual_samples_end_near_an_exhaustive_grid_with_any_seed(surface):
    best = best_of_grid(surface)
    ends = sorted(surface(run(surface, 20, seed)[0].result.point) / best for seed in range(12))
    default = surface({each.name: each.default for each in SPACE}) / best
    assert default < 0.76 and ends[0] >= 0.88 and sum(end >= 0.97 for end in ends) >= 5


def test_the_default_is_the_first_point_and_is_measured_again_before_the_best():
    search, points = run(inside_a_host, 20)
    default = tuple(each.default for each in SPACE)
    assert len(points) == 22 and points[0] == points[20] == default
    assert points[21] == tuple(search.result.point.values()) != default
    assert len(set(points[:20])) == 20


@pytest.mark.parametrize("seed", range(5))
def test_a_search_never_ends_worse_than_the_default(seed):
    def default_is_best(point):
        return 2e6 if all(point[each.name] == each.default for each in SPACE) else 1e6

    search, _ = run(default_is_best, 20, seed, noise=0.05)
    assert search.point == search.result.point == {each.name: each.default for each in SPACE}
    assert not search.result.improved


def test_a_lucky_first_score_does_not_win():
    search = Search(SPACE, 5)
    scores = iter([100.0, 90.0, 180.0, 95.0, 80.0, 101.0, 99.0])
    while search.tell(next(scores)) is not None:
        pass
    assert not search.result.improved
    assert (search.result.score, search.result.default_score) == (101.0, 101.0)


def test_equal_seeds_and_scores_give_equal_points():
    assert run(slow_link, 20, seed=3)[1] == run(slow_link, 20, seed=3)[1]
    assert run(slow_link, 20, seed=3)[1] != run(slow_link, 20, seed=4)[1]


def test_a_space_smaller_than_the_samples_is_measured_once():
    search = Search((Parameter("cache", (1, 0), 1),), 20)
    scores = iter([1.0, 2.0, 1.0, 2.0])
    while search.tell(next(scores)) is not None:
        pass
    assert search.result.point == {"cache": 0} and search.measured == search.total == 4


@pytest.mark.parametrize("score", [math.nan, math.inf, -1.0])
def test_a_score_that_is_no_speed_is_refused(score):
    with pytest.raises(InvalidArgumentError, match="finite score"):
        Search(SPACE, 5).tell(score)


def test_nothing_to_tune_is_an_error():
    with pytest.raises(InvalidArgumentError, match="needs a parameter"):
        Search((), 5)


def test_a_missing_optuna_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install 'horocache\[autotune\]'"):
        Search(SPACE, 5)
