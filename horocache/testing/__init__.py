"""For tests of code that runs on several ranks: starts ranks from a test, and describes faults to inject."""

from horocache.testing.faults import Fault
from horocache.testing.ranks import Outcome, RanksFailed, run_ranks

__all__ = ["Fault", "Outcome", "RanksFailed", "run_ranks"]
