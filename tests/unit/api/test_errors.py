"""The error tree, and the exceptions for the core's status codes."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from horocache import errors

STATUS_H = Path(__file__).parents[3] / "cpp_core" / "base" / "status.h"


def classes():
    return [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.HorocacheError)]


def test_the_table_follows_the_cores_status_codes():
    body = re.search(r"enum class StatusCode : int \{(.*?)\};", STATUS_H.read_text(), re.DOTALL)[1]
    names = re.findall(r"^\s*k(\w+)", body, re.MULTILINE)
    assert names[0] == "Ok" and len(names) == len(errors.ERRORS)
    renamed = {"Forked": "ForkedProcess"}
    for code, name in enumerate(names[1:], start=1):
        assert errors.ERRORS[code].__name__ == renamed.get(name, name) + "Error"
        assert type(errors.error_for(code, "why")) is errors.ERRORS[code]
        assert str(errors.error_for(code, "why")) == "why"


@pytest.mark.parametrize("code", [0, -1, 99])
def test_an_unknown_status_code_is_an_internal_error_that_names_it(code):
    error = errors.error_for(code, "something")
    assert type(error) is errors.InternalError
    assert str(code) in str(error) and "something" in str(error)


def test_handlers_written_for_horovod_catch_our_errors():
    for name in ["Mismatch", "Stall", "PeerLost", "ShutDown", "Aborted", "Corrupt", "Internal"]:
        error = getattr(errors, f"{name}Error")
        assert issubclass(error, errors.HorovodInternalError) and issubclass(error, RuntimeError)
    for name in ["InvalidArgumentError", "NotInitializedError", "DuplicateNameError", "StartupError"]:
        assert issubclass(getattr(errors, name), ValueError)
    assert issubclass(errors.UnsupportedError, NotImplementedError)
    assert issubclass(errors.OutOfMemoryError, MemoryError)
    assert errors.PeerLost is errors.PeerLostError


def test_every_error_is_documented_and_survives_pickling():
    assert len(classes()) >= 17
    for error in classes():
        assert issubclass(error, errors.HorocacheError) and error.__doc__
        copy = pickle.loads(pickle.dumps(error("a message")))
        assert type(copy) is error and str(copy) == "a message"
    assert str(errors.NotInitializedError()) == "horocache has not been initialized; call init() first."
