"""The public name of ``predict`` in :mod:`horocache.lang.tuning.cost_model`."""

from horocache.lang.tuning.cost_model import predict

__all__ = ["predict"]
