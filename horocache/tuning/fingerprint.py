"""The fingerprint of a host: what its measurements depend on, and another host may not have."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import Annotated

import msgspec
import psutil
from msgspec import Meta

from horocache.base.processors import cpu_quota, memory_limit
from horocache.base.untrusted_text import printable

_GIB = 1 << 30
_MOST_CHARACTERS = 200  # of a text in a fingerprint

_Text = Annotated[str, Meta(max_length=_MOST_CHARACTERS)]


class Fingerprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The host of a tuning table.

    Attributes:
        cpu: model of the processor, such as ``AMD EPYC 7763 64-Core Processor``.
        cores: logical processors of the host, or the container's quota in whole cores if that is less.
        memory_gib: memory of the host or the container's limit, rounded to whole GiB.
        kernel: release of the kernel, such as ``6.1.0-18-amd64``.
        hash: ``sha256:`` and 64 hexadecimal digits, of the other fields.
    """

    cpu: _Text
    cores: Annotated[int, Meta(ge=1, le=1 << 20)]
    memory_gib: Annotated[int, Meta(ge=0, le=1 << 30)]
    kernel: _Text
    hash: _Text

    def differences(self, other: Fingerprint) -> list[str]:
        """Describe each field that differs: ``cores 8, not 2``, if this host has 8 and the other one has 2."""
        names = ("cpu", "cores", "memory_gib", "kernel")
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        found = [f"{name} {mine}, not {theirs}" for name, mine, theirs in pairs if mine != theirs]
        return found or ([f"hash {self.hash}, not {other.hash}"] if self.hash != other.hash else [])


def fingerprint_of(cpu: str, cores: int, memory_gib: int, kernel: str) -> Fingerprint:
    """Return the fingerprint with these fields, and their hash."""
    text = msgspec.json.encode([cpu, cores, memory_gib, kernel])
    return Fingerprint(cpu, cores, memory_gib, kernel, "sha256:" + hashlib.sha256(text).hexdigest())


def fingerprint_here(root: Path = Path("/")) -> Fingerprint:
    """Return the fingerprint of this host. It does not depend on this process's affinity.

    Args:
        root: the root of the file system; tests pass another one.
    """
    cores, quota = os.cpu_count() or 1, cpu_quota(root)
    if quota is not None:
        cores = max(1, min(cores, int(quota)))
    memory, limit = psutil.virtual_memory().total, memory_limit(root)
    if limit is not None:
        memory = min(memory, limit)
    cpu = _cpu_model(root / "proc/cpuinfo") or platform.machine()
    return fingerprint_of(_short(cpu), cores, round(memory / _GIB), _short(platform.release()))


def _cpu_model(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = (line.partition(":") for line in file)
            return next((value.strip() for name, _, value in lines if name.strip() == "model name"), "")
    except OSError:
        return ""


def _short(text: str) -> str:
    return printable(text)[:_MOST_CHARACTERS]
