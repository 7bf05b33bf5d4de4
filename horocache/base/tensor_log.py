"""The logger of tensors that are submitted and of their results."""

from __future__ import annotations

import logging

logger = logging.getLogger("horocache.tensors")


def is_enabled() -> bool:
    """True if the user set the logger ``horocache.tensors`` to DEBUG; a change takes effect at the next ``init``."""
    return logger.isEnabledFor(logging.DEBUG)
