"""For tests of the fake libraries: ``fakes`` is beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
