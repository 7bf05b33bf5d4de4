"""Placement of experts: expert-parallel groups after a cluster's topology, and experts to devices after their load.

The model is section 4 of Aristos (equations 1 and 2). Everything here is a function of numbers on one rank: it needs no
job and sends nothing. A program calls it on one rank and broadcasts the result, or calls it on every rank with equal
arguments, which gives equal results.
"""

from horocache.moe.placement.drawing import draw
from horocache.moe.placement.errors import PlacementError
from horocache.moe.placement.experts import Move, Placement, improved_map, moves, place_experts
from horocache.moe.placement.model import GroupCost
from horocache.moe.placement.sharding import Sharding, shard
from horocache.moe.placement.topology import Topology, Workload

__all__ = [
    "GroupCost",
    "Move",
    "Placement",
    "PlacementError",
    "Sharding",
    "Topology",
    "Workload",
    "draw",
    "improved_map",
    "moves",
    "place_experts",
    "shard",
]
