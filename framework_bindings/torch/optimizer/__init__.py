"""``DistributedOptimizer`` for torch, and what it is made of."""
