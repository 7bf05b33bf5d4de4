"""The logger that shows every tensor on its way to the wire and back."""

from __future__ import annotations

import logging

logger = logging.getLogger("horocache.tensors")


def is_enabled() -> bool:
    """True if the user set the logger ``horocache.tensors`` to DEBUG; takes effect at the next ``init``."""
    return logger.isEnabledFor(logging.DEBUG)
