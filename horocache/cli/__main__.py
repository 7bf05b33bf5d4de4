"""``python -m horocache.cli`` is ``horocache``."""

import sys

from horocache.cli.entry_point import main

if __name__ == "__main__":
    sys.exit(main())
