"""Runs programs that were written for Horovod: ``import horovod.torch as hvd`` gives :mod:`horocache.torch`.

``python -m horocache.compat train.py`` runs one such program, ``horocacherun --horovod`` runs it on the ranks of a job,
and :func:`install` makes the rest of a program do so. These three install nothing: they put the folder
:data:`PACKAGES`, which holds a package ``horovod`` and its metadata, at the front of the path of this process and of
processes that are started later. An installed Horovod is hidden meanwhile. ``horocache compat --install`` installs the
name in the environment (:mod:`horocache.compat.installation`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from horocache.core.launcher_environment import put_on_python_path

PACKAGES = str(Path(__file__).parent / "packages")
METADATA = Path(PACKAGES) / "horovod-0.28.1.dist-info" / "METADATA"


def install() -> None:
    """Make ``import horovod`` give horocache, in this process and in processes that it starts.

    Raises:
        ImportError: another ``horovod`` has already been imported.
    """
    loaded = getattr(sys.modules.get("horovod"), "__file__", None)
    if loaded is not None and not loaded.startswith(PACKAGES):
        raise ImportError(f"horovod has been imported already, from {loaded}; call horocache.compat.install() before.")
    if PACKAGES not in sys.path:
        sys.path.insert(0, PACKAGES)
    put_on_python_path(PACKAGES)
