"""The mark of tests that run with each binding to the core."""

import pytest

both_bindings = pytest.mark.parametrize("binding", ["native", "cffi"])
