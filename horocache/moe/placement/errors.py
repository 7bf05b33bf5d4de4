"""Errors of the placement of experts."""

from __future__ import annotations

from horocache.errors import HorocacheError, UnsupportedError


class PlacementError(HorocacheError, ValueError):
    """The devices cannot hold all experts; the message says how much memory is missing.

    Attributes:
        missing: experts for which the devices have no memory.
    """

    missing: int = 0


def missing_memory(needed: int, memory: list[int]) -> PlacementError:
    """Return the error for devices that together hold fewer experts than there are.

    Args:
        needed: experts to hold.
        memory: experts that each device can hold.
    """
    total = sum(memory)
    shown = ", ".join(f"device {i}: {each}" for i, each in enumerate(memory[:8])) + (", ..." if len(memory) > 8 else "")
    error = PlacementError(
        f"{len(memory)} devices have memory for {total} experts ({shown}), but there are {needed}: memory for "
        f"{needed - total} more is missing; add devices or memory, or use fewer or smaller experts."
    )
    error.missing = needed - total
    return error


def no_scipy() -> UnsupportedError:
    """Return the error for a solver that needs SciPy where it is not installed."""
    return UnsupportedError(
        "solver 'milp' needs SciPy: pip install 'horocache[moe]', or choose a solver that does not need it."
    )
