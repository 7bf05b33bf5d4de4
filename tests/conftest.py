"""For all tests: horocache's state folder is in the folder of the test run, and torch compiles cheaply."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for processes.py, which several folders share


@pytest.fixture(scope="session", autouse=True)
def _state_home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        # Otherwise each rank starts compiler processes that import torch, and compiles programs that try vector
        # instructions.
        patch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
        patch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "0")
        yield
