"""The last rank kills itself in the middle of the job; the others print the error that they get, and end."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
from common import pretend_hosts

pretend_hosts(sys.argv[1])

import horocache as hc  # noqa: E402

hc.init()
for step in range(1000):
    if step == 5 and hc.rank() == hc.size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        hc.allreduce(np.ones(1000), name="step")
    except hc.PeerLost as error:
        print(f"lost {hc.rank()} {' '.join(str(error).split())}", flush=True)
        sys.exit(7)
