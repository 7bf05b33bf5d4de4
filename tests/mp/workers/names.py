"""Names of tensors with any characters."""

import numpy as np
from common import attempt, job, report

import horocache as hc

NAMES = [
    'quo"te',
    "line\nfeed",
    "car\riage\ttab",
    "back\\slash {} %s $(touch x) ;",
    "Gewichte/ä/重み/🙂",
    b"bytes \xff\xfe\x00 end",
    "surrogate \udcff",
    "nul\x00inside",
    "x" * 1000,
]

with job():
    for index, name in enumerate(NAMES):
        for _ in range(2):  # negotiated, then from the cache
            result = hc.allreduce(np.full(3, index + 1.0, np.float32), op=hc.Sum, name=name)
            assert result[0] == (index + 1) * hc.size(), (name, result)
    for index, name in enumerate(NAMES):
        attempt(
            f"mismatch.{index}",
            lambda name=name: hc.allreduce(np.ones(3 + hc.rank(), np.float32), op=hc.Sum, name=name),
        )
    attempt("too-long", lambda: hc.allreduce(np.ones(3, np.float32), op=hc.Sum, name="x" * 5000))
    result = hc.allreduce(np.ones(3, np.float32), op=hc.Sum, name="plain")
    report("done", value=float(result[0]))
