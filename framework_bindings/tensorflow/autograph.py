"""What AutoGraph is told about functions of horocache: to call them as they are.

It would rewrite each into a function of its own otherwise, with branches that depend on tensors, of which there are
none, and would wrap what they raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

F = TypeVar("F", bound=Callable[..., Any])


def as_it_is(function: F) -> F:
    """A function that AutoGraph leaves alone."""
    return cast(F, tf.autograph.experimental.do_not_convert(function))
