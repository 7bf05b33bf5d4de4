"""Exchanges of mixture-of-experts layers, behind one interface.

An exchange moves a rank's batches of tokens to the ranks of their experts, and the results back. All exchanges give
equal bits; they differ in speed, in memory, and in whether a rank may leave early.
"""

from horocache.moe.exchanges.adaptive_tau import AdaptiveTau
from horocache.moe.exchanges.alltoall import Alltoall
from horocache.moe.exchanges.early_exit import EarlyExit
from horocache.moe.exchanges.exchange import Call, Exchange, Outcome, Report
from horocache.moe.exchanges.hierarchical import Hierarchical
from horocache.moe.exchanges.one_sided import OneSided
from horocache.moe.exchanges.padded import Padded
from horocache.moe.exchanges.registry import Maker, Options, exchange_names, make_exchange

__all__ = [
    "AdaptiveTau",
    "Alltoall",
    "Call",
    "EarlyExit",
    "Exchange",
    "Hierarchical",
    "Maker",
    "OneSided",
    "Options",
    "Outcome",
    "Padded",
    "Report",
    "exchange_names",
    "make_exchange",
]
