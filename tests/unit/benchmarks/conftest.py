"""The benchmarks are a package beside the tests, not an installed one; this folder has modules of its own."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve()
for folder in (str(HERE.parents[3]), str(HERE.parent)):
    if folder not in sys.path:
        sys.path.append(folder)
