"""Marks the functions of ``horocache.torch`` for torch's compiler when the package is imported."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any

import torch

from .dynamo import can_skip_frames, outside

# Functions whose results a compiled program takes as constants, with guards: other results make it compile again.
_CONSTANTS = frozenset(
    (
        "cross_rank",
        "cross_size",
        "is_homogeneous",
        "is_initialized",
        "local_rank",
        "local_size",
        "rank",
        "size",
        *(f"{library}_built" for library in ("ccl", "cuda", "ddl", "gloo", "mpi", "nccl", "rocm")),
        "gloo_enabled",
        "mpi_enabled",
    )
)


def _graphs_take_collectives() -> bool:
    """Return True if torch can keep collectives in a graph; see Note [Collectives in compiled graphs]."""
    return (
        can_skip_frames()
        and hasattr(torch.library, "register_autograd")
        and hasattr(torch.library.Library, "_register_effectful_op")
    )


def mark_functions(public: Mapping[str, Any], shared: object) -> None:
    """Give the blocking collectives traced variants; mark all other functions except constants as outside of graphs.

    Args:
        public: the public functions of ``horocache.torch``, by name.
        shared: an object whose methods are operations that other modules call and other frameworks share.
    """
    if _graphs_take_collectives():
        from .traced_variants import add_traced_variants  # noqa: PLC0415  (needs a newer torch)

        add_traced_variants(public)
    methods = [getattr(shared, name) for name in dir(shared) if not name.startswith("_")]
    for thing in (*methods, *public.values()):
        known = hasattr(thing, "_torchdynamo_inline") or getattr(thing, "__name__", "") in _CONSTANTS
        if isinstance(thing, (FunctionType, MethodType)) and not known:
            outside(thing)
