"""``python -m horocache.tools`` is ``horocache``."""

import sys

from horocache.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
