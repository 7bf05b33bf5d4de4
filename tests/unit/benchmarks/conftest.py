"""Makes ``benchmarks``, which is not installed, and the modules of this folder importable."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve()
for folder in (str(HERE.parents[3]), str(HERE.parent)):
    if folder not in sys.path:
        sys.path.append(folder)
