"""``horovod.torch.optimizer``: the optimizer, and the classes that wrapped optimizers derive from."""

from horocache.torch import *  # noqa: F403
from horocache.torch.optimizer.adasum_optimizer import AdasumMixin as _DistributedAdasumOptimizer  # noqa: F401
from horocache.torch.optimizer.optimizer import DistributedMixin as _DistributedOptimizer  # noqa: F401

from ..common.util import split_list  # noqa: F401
