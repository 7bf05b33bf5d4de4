"""For all tests: a state folder of their own, torch that compiles cheaply, and signals that are not ignored."""

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for processes.py, which several folders share

# Children inherit ignored signals. A shell ignores SIGINT for background commands, and nohup ignores SIGHUP.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _state_home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        # Otherwise each rank starts compiler processes that import torch, and compiles programs that try vector
        # instructions.
        patch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
        patch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "0")
        yield
