"""``DistributedOptimizer`` for torch, and its parts."""
