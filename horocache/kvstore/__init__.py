"""MXNet's key-value store on horocache's engine: tensors by key, which workers push gradients to and pull weights from.

The types are those of Mamidala et al. (2018), besides ``negotiated``, in which the ranks may use the keys in any order.
:func:`create` lists them.
"""

from horocache.kvstore.create import create
from horocache.kvstore.order import TYPES
from horocache.kvstore.store import KVStore

__all__ = ["TYPES", "KVStore", "create"]
