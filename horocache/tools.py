"""``python -m horocache.tools`` is the command ``horocache``, by the name that programs and scripts use."""

import sys

from horocache.cli.entry_point import main

if __name__ == "__main__":
    sys.exit(main())
