"""Excludes functions of horocache from AutoGraph's conversion.

AutoGraph would otherwise rewrite each function to support branches that depend on tensors, which these functions do not
contain, and would wrap the exceptions that they raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

F = TypeVar("F", bound=Callable[..., Any])


def as_it_is(function: F) -> F:
    """Mark ``function`` so that AutoGraph calls it unconverted."""
    return cast(F, tf.autograph.experimental.do_not_convert(function))
