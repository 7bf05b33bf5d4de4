"""The search for the fastest settings, without any input or output."""

from __future__ import annotations

import importlib.util
import math
import warnings
from typing import Any, NamedTuple

from horocache.autotune.space import Parameter, Value
from horocache.errors import InvalidArgumentError, UnsupportedError

_STARTUP_SAMPLES = 5  # samples at random before the model chooses
_LOCAL_FROM = 0.4
_MOST_REPEATS = 50  # proposals that were measured before, after which one is measured again


class Result(NamedTuple):
    """How a search ended.

    Attributes:
        point: the settings to keep.
        score: the second score of that point.
        default_score: the higher one of the two scores of the default.
        improved: True if ``point`` is not the default.
    """

    point: dict[str, Value]
    score: float
    default_score: float
    improved: bool


def require_optuna() -> None:
    """Raise UnsupportedError if optuna is not installed."""
    if importlib.util.find_spec("optuna") is None:
        raise UnsupportedError("HOROCACHE_AUTOTUNE=1 needs optuna: pip install 'horocache[autotune]'")


class Search:
    """Proposes points by a tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011), as optuna has it.

    The first sample is the default. The samples after it are the estimator's, up to two fifths of all; the others are
    neighbours of the best point, whose settings differ in one place by one value. No point is measured twice. After
    ``samples`` samples the default is measured a second time, then the best point. The best point is kept if its second
    score is higher than both scores of the default; else the default is kept. The first score of the best point does
    not count, because the best of many noisy scores is too high on average.

    For example, with scores of 100 (default), 90, 130 and 110, the default and the third point are measured again. With
    102 and 125 the third point is kept; with 102 and 101 the default is kept.

    Role: used by one thread. Equal seeds and scores give equal points.
    """

    def __init__(self, space: tuple[Parameter, ...], samples: int, seed: int = 0) -> None:
        """Begin a search.

        Args:
            space: the parameters; none of them may be empty.
            samples: number of samples before the comparison, at least 1.
            seed: of the estimator.

        Raises:
            InvalidArgumentError: there is nothing to tune, or ``samples`` is below 1. UnsupportedError: optuna is not
                installed.
        """
        if not space or samples < 1:
            raise InvalidArgumentError(f"a search needs a parameter and a sample; it has {len(space)} and {samples}.")
        require_optuna()
        import optuna  # noqa: PLC0415  (an optional library)

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._samples = min(samples, math.prod(len(each.values) for each in space))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # multivariate is marked experimental
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP_SAMPLES, multivariate=True)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        ranges = {each.name: optuna.distributions.IntDistribution(0, len(each.values) - 1) for each in space}
        self._ranges: dict[str, Any] = ranges
        self._default = tuple(each.values.index(each.default) for each in space)
        self._study.enqueue_trial(dict(zip(ranges, self._default, strict=True)))
        self._scores: dict[tuple[int, ...], float] = {}  # the first ones
        self._again: list[float] = []  # of the default, and of the best point
        self._trial: Any = None
        self._current = self._default
        self._ask()
        self.result: Result | None = None

    @property
    def point(self) -> dict[str, Value]:
        """The point to measure now, or the one to keep when the search has ended."""
        return self._point_of(self._current)

    @property
    def kept(self) -> dict[str, Value]:
        """The point to keep if the search ends now: that of the result, and the default before there is one."""
        return self._point_of(self._default) if self.result is None else self.result.point

    @property
    def measured(self) -> int:
        """Number of scores so far."""
        return len(self._scores) + len(self._again)

    @property
    def total(self) -> int:
        """Number of scores that the whole search takes at most."""
        return self._samples + 2

    def tell(self, score: float) -> dict[str, Value] | None:
        """Take the score of the current point.

        Args:
            score: the higher the better; finite and not negative.

        Returns:
            The next point to measure; None if the search has ended, see ``result``.

        Raises:
            InvalidArgumentError: the score is another number, or the search has ended.
        """
        if self.result is not None or not (math.isfinite(score) and score >= 0):
            raise InvalidArgumentError(f"a search that has not ended takes a finite score from 0 on, not {score}.")
        if len(self._scores) < self._samples:
            self._scores[self._current] = score
            self._study.tell(self._trial, score)
            if len(self._scores) < self._samples:
                self._ask()
            else:
                self._current = self._default
        else:
            self._again.append(score)
            self._current = self._best()
            if len(self._again) == 2 or self._current == self._default:
                self._end()
                return None
        return self.point

    def _best(self) -> tuple[int, ...]:
        return max(self._scores, key=self._scores.__getitem__)

    def _end(self) -> None:
        default_score = max(self._scores[self._default], self._again[0])
        improved = len(self._again) == 2 and self._again[1] > default_score
        if not improved:
            self._current = self._default
        score = self._again[1] if improved else self._again[0]
        self.result = Result(self.point, score, default_score, improved)

    def _ask(self) -> None:
        """Choose the next point, one that has no score yet: the estimator's, or a neighbour of the best point."""
        if len(self._scores) < self._samples * _LOCAL_FROM:
            for _ in range(_MOST_REPEATS):
                self._take_trial()
                if self._current not in self._scores:
                    return
                self._study.tell(self._trial, self._scores[self._current])
        near = self._nearest_unmeasured()
        self._study.enqueue_trial({each.name: i for each, i in zip(self._space, near, strict=True)})
        self._take_trial()

    def _take_trial(self) -> None:
        self._trial = self._study.ask(self._ranges)
        self._current = tuple(self._trial.params[each.name] for each in self._space)

    def _nearest_unmeasured(self) -> tuple[int, ...]:
        """Return the point without a score that is fewest steps away from the best one; there is one."""
        reached = [self._best()]
        seen = set(reached)
        for point in reached:
            if point not in self._scores:
                return point
            for place, each in enumerate(self._space):
                for value in (point[place] - 1, point[place] + 1):
                    near = (*point[:place], value, *point[place + 1 :])
                    if 0 <= value < len(each.values) and near not in seen:
                        seen.add(near)
                        reached.append(near)
        raise AssertionError("every point has a score")

    def _point_of(self, indices: tuple[int, ...]) -> dict[str, Value]:
        return {each.name: each.values[i] for each, i in zip(self._space, indices, strict=True)}
