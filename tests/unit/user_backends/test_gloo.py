"""How the backend gloo tells the end of an operation from the end of a slice of waiting."""

from __future__ import annotations

import pytest

from horocache.user_backends.gloo import has_ended


class Part:
    """A work of gloo whose waits end one after the other as the list says: in an error, or well (None)."""

    def __init__(self, ends, completed):
        self.ends, self.completed = list(ends), completed

    def wait(self, limit):
        error = self.ends.pop(0)
        if error is not None:
            raise error

    def is_completed(self):
        return self.completed


TIMED_OUT = RuntimeError("Operation timed out!")


def test_a_slice_that_ends_first_is_not_the_end_of_the_operation():
    assert not has_ended(Part([TIMED_OUT], completed=False))


def test_an_operation_that_ends_between_the_slice_and_the_look_at_it_has_ended_well():
    assert has_ended(Part([TIMED_OUT, None], completed=True))


def test_the_operations_own_error_is_raised():
    own = RuntimeError("Connection closed by peer")
    with pytest.raises(RuntimeError, match="closed by peer"):
        has_ended(Part([own, own], completed=True))
