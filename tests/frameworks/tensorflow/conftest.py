"""Without TensorFlow, the tests of this folder are not collected."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("tensorflow") else ["test_*.py"]
