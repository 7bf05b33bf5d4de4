"""``DistributedOptimizer`` for torch, and what it is made of."""

from .optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
