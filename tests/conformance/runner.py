"""Runs calls in one job and compares their results with the expected ones."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import calls
import numpy as np
from calls import Call, by_name


@functools.cache
def _torch() -> Any:
    """torch and its binding, which bfloat16 needs; None if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import horocache.torch as hvd
    import torch

    return torch, hvd


def dtypes(hc: ModuleType) -> list[str]:
    """Element types that this process can make tensors of: bfloat16 needs torch, and torch the native binding."""
    from horocache.core import context

    native = context.current().runtime.knobs()["binding"][0] == "native"
    return [dtype for dtype in calls.DTYPES if dtype != "bfloat16" or (native and _torch() is not None)]


def to_tensor(array: np.ndarray[Any, Any], dtype: str) -> Any:
    return _torch()[0].from_numpy(array.copy()).bfloat16() if dtype == "bfloat16" else array


def to_array(tensor: Any, dtype: str) -> np.ndarray[Any, Any]:
    return np.asarray(tensor.float() if dtype == "bfloat16" and tensor.is_floating_point() else tensor)


class Runner:
    """Runs calls in one job and compares their results.

    Each call has its own name, so that ranks may submit calls in any order.
    """

    def __init__(self, hc: ModuleType, backend: str | None, case: str) -> None:
        self.hc, self.backend, self.case = hc, backend, case
        self.rank, self.ranks = hc.rank(), hc.size()
        self.checks = 0
        self._number = 0

    def name(self) -> str:
        self._number += 1
        return f"{self.case}.{self.backend}.{self._number}"

    def submit(self, call: Call, name: str, form: str = "_async") -> Any:
        package = _torch()[1] if call.dtype == "bfloat16" else self.hc
        tensor, *rest = call.arguments(self.rank)
        operation = getattr(package, call.operation + form)
        arguments = by_name(operation, [to_tensor(tensor, call.dtype), *rest])
        return operation(**arguments, name=name, backend=self.backend, **call.options)

    def compare(self, call: Call, got: Any) -> None:
        expected = call.expected(self.rank)
        where = f"rank {self.rank} of {self.ranks}, backend {self.backend}: {call.describe(self.rank)}"
        if expected is None:
            assert got is None, f"{where} gave {got!r}, not None"
        elif isinstance(expected, tuple):
            assert isinstance(got, tuple), f"{where} gave {got!r}, not a pair"
            self._same(call, got[0], expected[0], where)
            np.testing.assert_array_equal(np.asarray(got[1]), expected[1], where)
        else:
            self._same(call, got, expected, where)
        self.checks += 1

    def _same(self, call: Call, got: Any, expected: np.ndarray[Any, Any], where: str) -> None:
        array = to_array(got, call.dtype)
        assert array.shape == expected.shape, f"{where}: shape {array.shape}, not {expected.shape}"
        assert array.dtype == expected.dtype, f"{where}: {array.dtype}, not {expected.dtype}"
        if call.average:
            epsilon = calls.EPSILON[call.dtype]
            np.testing.assert_allclose(array, expected, rtol=epsilon, atol=epsilon, err_msg=where)
        elif not np.array_equal(array, expected):  # the next line formats a message, which takes much longer
            np.testing.assert_array_equal(array, expected, where)

    def run(self, batch: Sequence[Call]) -> None:
        """Run the first call blocking, then submit the others and wait for them in reverse order."""
        if not batch:
            return
        self.compare(batch[0], self.submit(batch[0], self.name(), ""))
        named = [(call, self.name()) for call in batch[1:]]
        handles = [(call, self.submit(call, name)) for call, name in named]
        for call, handle in reversed(handles):
            self.compare(call, self.hc.synchronize(handle))

    def expect_error(
        self, error: type[Exception] | tuple[type[Exception], ...], words: str, run: Callable[[], Any]
    ) -> None:
        """Check that ``run`` raises on this rank and that the job goes on."""
        try:
            got = run()
        except error as raised:
            assert words in str(raised), f"rank {self.rank}: {raised} does not say {words!r}"
        else:
            raise AssertionError(f"rank {self.rank}, backend {self.backend}: no error with {words!r}, but {got!r}")
        total = self.hc.allreduce(np.ones(3), op=self.hc.Sum, name="goes.on", backend=self.backend)
        np.testing.assert_array_equal(total, np.full(3, self.ranks))
        self.checks += 1
