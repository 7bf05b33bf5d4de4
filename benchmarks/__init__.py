"""Speed, measured against peers in the same run. ``make bench``, or ``python benchmarks/run.py --help``."""
