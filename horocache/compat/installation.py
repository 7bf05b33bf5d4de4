"""``horocache compat --install``: makes this environment look as if Horovod were installed in it.

``--horovod`` and ``python -m horocache.compat`` work by ``PYTHONPATH``, which a job script may replace and ``python
-I`` ignores. The installation consists of

* a ``.pth`` file, by which ``import horovod`` gives horocache in every process of the environment;
* the command ``horovodrun``;
* the metadata of a distribution ``horovod``, for programs that ask for its version. Its RECORD lists all files, so that
  ``pip uninstall horovod`` removes them, too.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.machinery
import importlib.metadata
import io
import os
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from horocache.base.usage import UsageError
from horocache.compat import METADATA, PACKAGES

_INSTALLER = "horocache"  # content of the file INSTALLER, in which pip writes "pip"; marks our distribution
_PATH_FILE = "horocache_horovod.pth"
_ENTRY_POINTS = "[console_scripts]\nhorovodrun = horocache.compat.horovodrun:main\n"
_WHEEL = "Wheel-Version: 1.0\nGenerator: horocache\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_SCRIPT = """\
import sys
from horocache.compat.horovodrun import main
sys.exit(main())
"""


def install() -> str:
    """Make ``import horovod`` give horocache in this environment. Replaces an earlier installation by horocache.

    Returns:
        A message for the user with the installed parts.

    Raises:
        UsageError: another Horovod or another command ``horovodrun`` is installed, the environment belongs to the
            system, horocache is not installed in it, or a file cannot be written.
    """
    _refuse_others()
    _check_environment()
    uninstall()
    library, scripts = _folder("purelib"), _folder("scripts")
    info = library / METADATA.parent.name
    files = {
        library / _PATH_FILE: PACKAGES + "\n",
        scripts / "horovodrun": _shebang(sys.executable) + _SCRIPT,
        info / "METADATA": METADATA.read_text(encoding="utf-8"),
        info / "WHEEL": _WHEEL,
        info / "entry_points.txt": _ENTRY_POINTS,
        info / "INSTALLER": _INSTALLER + "\n",
    }
    if (scripts / "horovodrun").exists():
        raise UsageError(f"there is a command {scripts / 'horovodrun'} already; remove it first", 1)
    files[info / "RECORD"] = _record(files, info / "RECORD", library)
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        (scripts / "horovodrun").chmod(0o755)
    except OSError as error:
        uninstall()
        raise UsageError(f"cannot write '{error.filename}': {error.strerror}", 1) from error
    return f"installed in {library}: import horovod, the command {scripts / 'horovodrun'}, and metadata of horovod"


def uninstall() -> str:
    """Remove the files that :func:`install` wrote, and no others.

    Returns:
        A message for the user.

    Raises:
        UsageError: a file cannot be removed.
    """
    library, scripts = _folder("purelib"), _folder("scripts")
    removed = False
    try:
        for info in _own_distributions(library):
            for name in ("METADATA", "WHEEL", "entry_points.txt", "RECORD", "INSTALLER"):
                (info / name).unlink(missing_ok=True)
            info.rmdir()
            removed = True
        for path, ours in ((library / _PATH_FILE, PACKAGES), (scripts / "horovodrun", _SCRIPT)):
            if path.is_file() and ours in path.read_text(encoding="utf-8", errors="replace"):
                path.unlink()
                removed = True
    except OSError as error:
        raise UsageError(f"cannot remove '{error.filename}': {error.strerror}", 1) from error
    return f"removed from {library}" if removed else f"there is nothing of it in {library}"


def _own_distributions(library: Path) -> Iterator[Path]:
    for info in library.glob("horovod-*.dist-info"):
        installer = info / "INSTALLER"
        if installer.is_file() and installer.read_text(encoding="utf-8", errors="replace").strip() == _INSTALLER:
            yield info


def _refuse_others() -> None:
    """Raise UsageError if a Horovod is installed that does not come from horocache."""
    folders = [folder for folder in dict.fromkeys(_folders()) if folder != PACKAGES]
    for found in importlib.metadata.distributions(name="horovod", path=folders):
        if (found.read_text("INSTALLER") or "").strip() != _INSTALLER:
            raise UsageError(f"Horovod {found.version} is installed already; remove it first: pip uninstall horovod", 1)
    spec = importlib.machinery.PathFinder.find_spec("horovod", folders)
    if spec is not None and spec.origin is not None:  # a folder without __init__.py has no origin
        raise UsageError(f"there is a package horovod already, {spec.origin}; remove it first", 1)


def _folders() -> Iterator[str]:
    yield from (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    yield from site.getsitepackages()
    if site.ENABLE_USER_SITE:
        yield site.getusersitepackages()


def _check_environment() -> None:
    """Raise UsageError if pip would refuse to install here, or if other processes would not find horocache itself."""
    if sys.prefix == sys.base_prefix and (Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED").exists():
        raise UsageError(f"the Python in {sys.prefix} is the system's; install into a virtual environment", 1)
    program = "import horocache.compat as c; print(c.PACKAGES)"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False, cwd="/")
    if done.stdout.strip() != PACKAGES:
        raise UsageError(f"this horocache, in {PACKAGES}, is not installed in {sys.prefix}; install it first", 1)


def _folder(name: str) -> Path:
    return Path(sysconfig.get_path(name))


def _shebang(python: str) -> str:
    if len(python) < 120 and not any(map(str.isspace, python)):
        return f"#!{python}\n"
    # The kernel accepts neither long paths nor spaces. To a shell these lines are a command, to Python a string.
    return f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"


def _record(files: dict[Path, str], record: Path, library: Path) -> str:
    """Return the content of RECORD: the paths relative to ``library``, hashes and sizes, for ``pip uninstall``."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for path, text in files.items():
        data = text.encode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        writer.writerow([os.path.relpath(path, library), f"sha256={digest}", len(data)])
    writer.writerow([os.path.relpath(record, library), "", ""])
    return out.getvalue()
