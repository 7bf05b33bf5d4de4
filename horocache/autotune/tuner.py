"""Rank 0's thread that tunes: it observes steps, measures settings, and changes them on all ranks.

Note [The number of groups changes at one step]
All ranks must change the buckets of their gradients between the same two steps. So rank 0's optimizer asks for the
change, on the thread that trains, at the end of a step k, by a note "num_groups=N from_step=k+3". Each optimizer looks
for a note at the end of each of its steps, and rebuilds its buckets at the end of step k+3. All ranks have the note by
then:

1. Rank 0 gives the note to its daemon before it submits an operation of step k+1. The daemon takes new settings before
   it takes new operations, so at the latest in the next pass. An operation of step k+2 is submitted after the
   operations of step k+1 have ended, so the controller of rank 0 has the note before it.
2. So the round that agrees on an operation of step k+2 is the round with the note, or a later one.
3. Rounds have one order on all ranks. An operation of step k+3 is agreed on in a round after that, because every rank
   submits it after step k+2. A rank takes the settings of a round before it starts the next round. So a rank that has
   ended an operation of step k+3 has the note.

A second note is given at the end of step k+4 or later. All ranks have looked for the first one by then: they have
submitted operations of step k+4, which they do after the end of step k+3.

Each step has an operation: an optimizer reduces all gradients in each step, with zeros for missing ones. An optimizer
whose parameters are all frozen has no operation, and changes nothing by regrouping. The argument needs that the ranks
count the same steps and that the gradients travel in the rounds of the set of all ranks. So only the first optimizer
with num_groups="auto" on that set changes its groups, and join(), after which the ranks count differently, is refused
as soon as a program has made such an optimizer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from horocache.autotune import space as spaces
from horocache.autotune.files import Log, Saved, load, save
from horocache.autotune.sample import Sample, Score
from horocache.autotune.search import Result, Search, require_optuna
from horocache.autotune.space import Parameter, Value
from horocache.base.paths import why_not_writable
from horocache.base.untrusted_text import printable
from horocache.errors import HorocacheError, InvalidArgumentError

if TYPE_CHECKING:
    from horocache.core.runtime_protocol import Runtime

Knobs = Mapping[str, tuple[str, str]]

NOTE_DISTANCE = 3  # steps; see Note [The number of groups changes at one step]
_SHORTEST_POLL_S, _LONGEST_POLL_S = 0.002, 0.05
_POLLS_PER_STEP = 20
_JOIN_S = 10.0  # for the thread to end; the model of a search takes some 10 ms
_MOST_STEPS_UNTAKEN = 1000  # after which an optimizer has not taken a number of groups

_logger = logging.getLogger("horocache.autotune")


class Options(NamedTuple):
    """The knobs of autotune."""

    log: str
    save: str
    warmup_samples: int
    steps_per_sample: int
    max_samples: int


def check(knobs: Knobs, is_rank_0: bool) -> dict[str, Value] | None:
    """Check the knobs of autotune before a session starts; return the settings of ``autotune_load`` on rank 0.

    Raises:
        UnsupportedError: optuna is needed and not installed. InvalidArgumentError: a bad file of ``autotune_load``, or
            on rank 0 no file can be written at the path of ``autotune_log`` or ``autotune_save``.
    """
    path = knobs["autotune_load"][0]
    if path:
        return load(path) if is_rank_0 else None
    require_optuna()
    for name in ("autotune_log", "autotune_save"):
        target = knobs[name][0]
        if is_rank_0 and target and (reason := why_not_writable(Path(target))):
            raise InvalidArgumentError(f"HOROCACHE_{name.upper()}={printable(target)}: {printable(reason)}.")
    return None


class Tuner:
    """Tunes the settings of a running job, or sets those that were loaded.

    Role: owned by rank 0's session. ``offer_groups`` and ``take_change`` are called by the thread that trains; the
    thread ``hc-autotune`` does the rest. The thread never holds the lock while it computes.
    """

    def __init__(self, runtime: Runtime, rules: str, loaded: Mapping[str, Value] | None = None) -> None:
        """Read the knobs of ``runtime``, which is rank 0's; ``rules`` are those of the job's tuning table."""
        knobs: Knobs = runtime.knobs()
        self._runtime, self._knobs, self._rules = runtime, knobs, rules
        whole = {name: int(knobs[f"autotune_{name}"][0]) for name in ("warmup_samples", "steps_per_sample")}
        most = int(knobs["autotune_bayes_opt_max_samples"][0])
        self._options = Options(knobs["autotune_log"][0], knobs["autotune_save"][0], **whole, max_samples=most)
        self._loaded = None if loaded is None else {n: v for n, v in loaded.items() if not self._set_by_user(n)}
        self._table = rules  # in force
        self._groups_default: int | None = None
        self._change: str | None = None  # the settings for the optimizer to change
        self._number: Value = 0  # the number of groups of that change
        self._next_note = 0  # the first step at whose end a note may be given
        self._lock = threading.Lock()  # guards the four above, and is held while a change is handed to the runtime
        self._search: Search | None = None
        self._stop = threading.Event()
        self._poll_s = _SHORTEST_POLL_S
        self._thread = threading.Thread(target=self._run, name="hc-autotune", daemon=True)

    def start(self) -> None:
        """Set the loaded settings, or start the thread."""
        if self._loaded is None:
            self._thread.start()
        else:
            loaded = {name: value for name, value in self._loaded.items() if name != "num_groups"}
            self._runtime.configure(spaces.settings_text(loaded, self._rules, self._table))
            _logger.info("autotune: settings of %s: %s", self._knobs["autotune_load"][0], _text(self._loaded))

    def stop(self) -> None:
        """End the thread; called before the runtime stops."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    # ---- the optimizer with num_groups="auto", on the thread that trains

    def offer_groups(self, default: int) -> None:
        """Take note that an optimizer can change its number of groups, which is ``default`` now."""
        with self._lock:
            self._groups_default = default
            if self._loaded is not None and self._loaded.get("num_groups", default) != default:
                self._change, self._number = "", self._loaded["num_groups"]

    def take_change(self, step: int) -> None:
        """Change the settings if a change waits; called at the end of the optimizer's step number ``step``."""
        if self._change is None or step < self._next_note:
            return
        with self._lock:
            change, self._change = self._change, None
            if change is None:
                return
            from_step = step + NOTE_DISTANCE
            note = f"note=num_groups={self._number} from_step={from_step}"
            self._runtime.configure(f"{change}\n{note}" if change else note)
            self._next_note = from_step + 1

    # ---- the thread

    def _run(self) -> None:
        try:
            self._tune()
        except _Stopped:
            search = self._search
            if search is not None and search.result is None:
                _logger.warning(
                    "autotune: the job ended after %d of %d samples, too early for a result",
                    *(search.measured, search.total),
                )
        except Exception as error:
            if not self._stop.is_set():
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Go back to the default settings after an error; if the search had ended, to its result."""
        trace = None if isinstance(error, HorocacheError) else error
        if self._search is None:
            _logger.warning("autotune has ended; the settings were not changed: %s", error, exc_info=trace)
            return
        kept = self._search.kept
        try:
            self._set_without_waiting(kept)
        except HorocacheError as failed:
            if not self._stop.is_set():
                _logger.warning("autotune has ended; it cannot set %s: %s", _text(kept), failed, exc_info=trace)
            return
        _logger.warning("autotune has ended; the settings are %s: %s", _text(kept), error, exc_info=trace)

    def _counts(self) -> tuple[int, int, int]:
        """Wait for the next poll; return the counts of steps and bytes, and the time. Raises _Stopped."""
        if self._stop.wait(self._poll_s):
            raise _Stopped
        now_ns = time.monotonic_ns()
        counters = self._runtime.metrics()
        return counters["steps"], counters["payload_bytes"], now_ns

    def _tune(self) -> None:
        self._warm_up()
        space = self._space()
        if not space:
            _logger.warning("autotune: nothing to tune, because all settings are set by hand")
            return
        self._search = Search(space, self._options.max_samples)
        self._tune_with(self._search, [each.name for each in space])

    def _warm_up(self) -> None:
        first, begin_ns = 0, 0
        while True:
            steps, _, now_ns = self._counts()
            if first == 0:
                first, begin_ns = steps, now_ns
            self._adapt_poll(steps - first, now_ns - begin_ns)
            if first and steps - first >= self._options.warmup_samples * self._options.steps_per_sample:
                return

    def _adapt_poll(self, steps: int, elapsed_ns: int) -> None:
        if steps > 0:
            wanted = elapsed_ns / steps / 1e9 / _POLLS_PER_STEP
            self._poll_s = min(max(wanted, _SHORTEST_POLL_S), _LONGEST_POLL_S)

    def _tune_with(self, search: Search, names: list[str]) -> None:
        log = Log(self._options.log, names)
        begin_ns = time.monotonic_ns()
        scores: list[Score] = []
        point: Mapping[str, Value] | None = search.point
        while point is not None:
            score = self._measure(point)
            scores.append(score)
            log.add(score.bytes_per_second, score.step_s, [point[name] for name in names])
            point = search.tell(score.bytes_per_second)
        assert search.result is not None
        self._apply(search.result.point)
        self._report(search.result, scores, (time.monotonic_ns() - begin_ns) / 1e9)

    def _measure(self, point: Mapping[str, Value]) -> Score:
        """Change the settings and measure them."""
        sample = Sample(self._options.steps_per_sample, self._apply(point))
        while True:
            steps, num_bytes, now_ns = self._counts()
            score = sample.observe(steps, num_bytes, now_ns)
            if score is not None:
                self._adapt_poll(1, int(score.step_s * 1e9))
                return score

    def _apply(self, point: Mapping[str, Value]) -> int:
        """Change the settings; return the count of steps when they had changed."""
        text = spaces.settings_text(point, self._rules, self._table)
        if "num_groups" in point:
            with self._lock:
                self._change, self._number = text, point["num_groups"]
            steps = self._await_taken()
        else:
            self._runtime.configure(text)
            steps = self._counts()[0]
        self._table = spaces.table_of(point, self._rules)
        return steps

    def _await_taken(self) -> int:
        """Wait until the optimizer has taken the change; return the count of steps then."""
        begin = 0
        while True:
            steps, _, _ = self._counts()
            begin = begin or steps
            if self._change is None:
                return steps
            if steps > begin + _MOST_STEPS_UNTAKEN:
                raise HorocacheError(f"the optimizer with num_groups='auto' made no step in {steps - begin} steps")

    def _set_without_waiting(self, point: Mapping[str, Value]) -> None:
        """Change the settings at once; the optimizer, which may be gone, takes its number of groups if it steps."""
        with self._lock:
            self._change = None
            self._runtime.configure(spaces.settings_text(point, self._rules, self._table))
            if "num_groups" in point:
                self._change, self._number = "", point["num_groups"]

    # ---- what is tuned

    def _set_by_user(self, name: str) -> bool:
        if name == "num_groups":
            return False  # a number in DistributedOptimizer() fixes it
        knob = {"cache": "cache_capacity", "table": "tuning_table"}.get(name, name)
        return name != "table" and self._knobs[knob][1] != "default"

    def _space(self) -> tuple[Parameter, ...]:
        """Return the settings that the user has not set, with their defaults."""
        found = [
            spaces.parameter("fusion_threshold", spaces.FUSION_THRESHOLDS, int(self._knobs["fusion_threshold"][0])),
            spaces.parameter("cycle_time", spaces.CYCLE_TIMES, float(self._knobs["cycle_time"][0])),
            Parameter("cache", (1, 0), 1),
        ]
        if self._rules:
            found.append(Parameter("table", (1, 0), 1))
        backends = {name: algorithms for name, algorithms, _ in self._runtime.backends(0)}
        if self._runtime.cross_size > 1 and "twolevel" in backends.get("mpi", ()):
            found += [Parameter(name, (0, 1), 0) for name in spaces.HIERARCHICAL]
        with self._lock:
            if self._groups_default is not None:
                found.append(spaces.parameter("num_groups", spaces.NUM_GROUPS, self._groups_default))
        return tuple(each for each in found if not self._set_by_user(each.name))

    def _report(self, result: Result, scores: list[Score], elapsed_s: float) -> None:
        """Log the result and the cost, and save the result."""
        steps = sum(score.steps for score in scores)
        usual = scores[0].step_s
        slower = sum(score.step_s * score.steps for score in scores) / (usual * steps)
        _logger.warning(  # a warning, because Python shows nothing less by default
            "autotune: %s %s, %.4g MB/s, default %.4g MB/s; tuning took %d steps and %.1f s, "
            "each step %.2fx the default's",
            "best settings" if result.improved else "no better settings than the default:",
            _text(result.point),
            result.score / 1e6,
            result.default_score / 1e6,
            *(steps, elapsed_s, slower),
        )
        if self._options.save:
            try:
                save(Saved(dict(result.point), result.score, result.default_score), Path(self._options.save))
            except OSError as error:
                _logger.warning("autotune: the result is not saved: %s", error)


class _Stopped(Exception):  # noqa: N818  (no error)
    """The session ends."""


def _text(point: Mapping[str, Value]) -> str:
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in point.items()
    )
