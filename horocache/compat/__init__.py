"""Runs programs that were written for Horovod: ``import horovod.torch as hvd`` gives :mod:`horocache.torch`.

``python -m horocache.compat train.py`` runs one, ``horocacherun --horovod`` starts the ranks of a job so, and
:func:`install` does it for the rest of a program. Nothing of the name ``horovod`` is installed by these: the folder
:data:`PACKAGES`, which holds a package of that name and its metadata, goes to the front of the path, also of processes
that are started later. An installed Horovod is hidden while it is there. ``horocache compat --install`` installs the
name in the environment; see :mod:`horocache.compat.installation`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from horocache.core.launcher_environment import put_on_python_path

PACKAGES = str(Path(__file__).parent / "packages")
METADATA = Path(PACKAGES) / "horovod-0.28.1.dist-info" / "METADATA"


def install() -> None:
    """Make ``import horovod`` give horocache, here and in processes that this one starts.

    Raises:
        ImportError: another ``horovod`` has been imported before.
    """
    loaded = getattr(sys.modules.get("horovod"), "__file__", None)
    if loaded is not None and not loaded.startswith(PACKAGES):
        raise ImportError(f"horovod has been imported already, from {loaded}; call horocache.compat.install() before.")
    if PACKAGES not in sys.path:
        sys.path.insert(0, PACKAGES)
    put_on_python_path(PACKAGES)
