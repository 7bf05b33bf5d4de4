"""The entry point that torch calls at its import, so that programs can use the backend without importing horocache.

torch 2.5 and later load the entry points of the group ``torch.backends``, unless ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` is
set; ``import horocache.torch`` registers the backend, too. This module is outside of ``horocache.torch`` because torch
is only partly initialized at that moment, and because programs that do not use horocache should not pay for its import.
"""

from __future__ import annotations

from typing import Any

BACKEND = "horocache"


class _OnFirstUse:
    """Registers the backend when torch looks its name up among the attributes of ``Backend``."""

    def __get__(self, instance: object, owner: type) -> str:
        register_torch_backend()
        return BACKEND


def announce_torch_backend() -> None:
    """Make ``torch.distributed.init_process_group("horocache")`` work; torch calls this as an entry point.

    The backend is registered only when its name is first used. As soon as torch has a backend that is not its own, a
    group of ``"cpu:gloo,cuda:gloo"`` loses its default backend, and warns of that when it is destroyed.
    """
    backend = _backend_class()
    if backend is not None and BACKEND.upper() not in vars(backend):
        setattr(backend, BACKEND.upper(), _OnFirstUse())
        backend.backend_list.append(BACKEND)  # for is_backend_available()


def register_torch_backend() -> None:
    """Register the backend with torch.distributed, unless it is registered already."""
    backend = _backend_class()
    if backend is not None and BACKEND.upper() not in backend._plugins:
        setattr(backend, BACKEND.upper(), BACKEND)
        backend.register_backend(BACKEND, _make_group, extended_api=True, devices=["cpu", "cuda"])


def _backend_class() -> Any:
    import torch.distributed as dist  # noqa: PLC0415  (importing horocache imports no framework)

    return dist.Backend if dist.is_available() else None


def _make_group(options: Any, backend_options: Any) -> Any:
    from horocache.torch.distributed.rendezvous import make_group  # noqa: PLC0415

    return make_group(options, backend_options)
