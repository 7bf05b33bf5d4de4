"""``python -m horocache.launch`` is ``horocacherun``."""

import sys

from horocache.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
