"""The rule that chooses tau from the stays of recent calls, with a clock of the test's own."""

from __future__ import annotations

import math
import pickle

import pytest

from horocache.errors import InvalidArgumentError
from horocache.moe.exchanges import AdaptiveTau, EarlyExit
from horocache.moe.exchanges.adaptive_tau import Countdown, Stay


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def countdown_after(stays, **options):
    countdown = Countdown(AdaptiveTau(**options))
    for stay in stays:
        countdown.add(stay)
    return countdown


def test_tau_is_infinite_until_enough_calls_are_recorded():
    assert countdown_after([0.5] * 7).tau == math.inf
    assert countdown_after([0.5] * 8).tau == 1.0
    assert countdown_after([None] * 50).tau == math.inf  # calls that tell nothing do not count


def test_a_few_late_calls_leave_tau_as_it_is_and_many_raise_it():
    assert countdown_after([0.002] * 60 + [1.0] * 4).tau == 0.004
    assert countdown_after([0.002] * 57 + [0.004] * 7).tau == 0.008


def test_a_countdown_that_ends_all_calls_grows_until_it_covers_them():
    """The late rank needs 1 s: the stays are cut by tau, and are then the whole second."""
    countdown = countdown_after([0.01] * 8, calls=16)
    taus = []
    for _ in range(200):
        taus.append(countdown.tau)
        countdown.add(min(countdown.tau, 1.0))
    assert taus == sorted(taus) and taus[0] == 0.02
    assert taus[-1] == 2.0  # and no longer than margin times the need


def test_tau_follows_the_recent_calls_and_stays_within_its_bounds():
    countdown = countdown_after([1.0] * 64)
    for _ in range(64):
        countdown.add(0.1)
    assert countdown.tau == 0.2
    assert countdown_after([0.0] * 8).tau == 0.001
    assert countdown_after([10.0] * 8, most=3.0).tau == 3.0
    assert countdown_after([1.0, 2.0, 3.0], first=3, quantile=0.5, margin=1.0).tau == 2.0
    assert countdown_after([1.0, 2.0, 3.0], first=3, quantile=1.0, margin=1.0).tau == 3.0


def test_a_stay_begins_with_the_own_result_and_epsilon_others():
    clock = Clock()
    stay = Stay([1, 1, 1, 1], own=1, epsilon=2, clock=clock)
    for peer in (0, 3):
        stay.take(peer)
        clock.now += 1
    assert stay.end() is None  # the own result is missing
    stay.take(1)
    clock.now += 0.25
    stay.take(2)
    clock.now += 0.5
    assert stay.end() == 0.75


def test_a_stay_waits_for_no_more_results_than_there_are():
    clock = Clock()
    stay = Stay([0, 5, 0], own=0, epsilon=2, clock=clock)
    clock.now += 1
    assert stay.end() is None
    stay.take(1)
    clock.now += 2
    assert stay.end() == 2
    idle = Stay([0, 0, 0], own=0, epsilon=2, clock=clock)  # of a rank without tokens
    clock.now += 3
    assert idle.end() == 3


def test_a_fixed_tau_stays():
    countdown = Countdown(0.5)
    countdown.add(7.0)
    assert countdown.tau == 0.5 and not countdown.adapts


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"quantile": 0}, "above 0 and at most 1, not 0"),
        ({"quantile": 1.5}, "above 0"),
        ({"margin": 0.5}, "at least 1, not 0.5"),
        ({"calls": 0, "first": 1}, "calls of AdaptiveTau is at least 1"),
        ({"calls": 2.5}, "number of calls"),
        ({"first": 65}, "from 1 to calls=64, not 65"),
        ({"least": -1}, "at least 0 seconds"),
        ({"least": 2, "most": 1}, "at least least=2 seconds, not 1"),
        ({"margin": math.nan}, "not nan"),
        ({"quantile": True}, "not True"),
    ],
)
def test_values_out_of_range_are_named(wrong, text):
    with pytest.raises(InvalidArgumentError, match=text):
        AdaptiveTau(**wrong)


def test_early_exit_takes_the_rule_by_its_name():
    assert EarlyExit(tau="adaptive").tau == AdaptiveTau() == EarlyExit(tau=AdaptiveTau()).rule
    assert EarlyExit(tau="adaptive").drops
    assert pickle.loads(pickle.dumps(EarlyExit(tau="adaptive"))) == EarlyExit(tau=AdaptiveTau())
    with pytest.raises(InvalidArgumentError, match="'adaptive', or an AdaptiveTau, not 'fast'"):
        EarlyExit(tau="fast")
