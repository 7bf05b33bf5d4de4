"""``horocache compat --install`` in a virtual environment that is layered on the environment of the tests."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment that finds this one's packages through a .pth file, as layered environments do."""
    folder = tmp_path_factory.mktemp("layered") / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    (library,) = folder.glob("lib/python*/site-packages")
    (library / "below.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    return folder, library


def run(environment, *arguments, program="python"):
    # Without PYTHONPATH and other variables that would make the packages importable.
    command = [str(environment[0] / "bin" / program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env={"PATH": "/usr/bin:/bin"})


def compat(environment, what):
    return run(environment, "-m", "horocache.tools", "compat", what)


READ_VERSION = """
import importlib.metadata as metadata, horovod, horocache
assert horovod.run is horocache.run
print(horovod.__version__, metadata.version("horovod"))
"""


def test_programs_find_horovod_its_command_and_its_version_while_installed(environment):
    folder, library = environment
    before = {path for path in folder.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"}
    for _ in range(2):
        done = compat(environment, "--install")
        assert done.returncode == 0 and str(library) in done.stdout, done.stderr
    done = run(environment, "-I", "-c", READ_VERSION)
    assert done.stdout.split() == ["0.28.1", "0.28.1"], done.stderr
    done = run(environment, "-np", "1", str(folder / "bin" / "python"), "-I", "-c", READ_VERSION, program="horovodrun")
    assert done.returncode == 0 and "[0] 0.28.1 0.28.1" in done.stdout, done.stderr
    assert run(environment, "--help", program="horovodrun").stdout.startswith("usage: horocacherun")
    # pip knows the package and all of its files.
    shown = run(environment, "-m", "pip", "show", "--files", "horovod").stdout
    for line in ("Version: 0.28.1", "Requires: horocache", "horocache_horovod.pth", "../../../bin/horovodrun"):
        assert line in shown, shown
    done = run(environment, "-m", "pip", "uninstall", "--yes", "horovod")
    assert done.returncode == 0, done.stderr
    left = {path for path in folder.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"}
    assert left == before
    assert compat(environment, "--install").returncode == 0
    assert "removed from" in compat(environment, "--uninstall").stdout
    assert "nothing of it" in compat(environment, "--uninstall").stdout
    assert run(environment, "-c", "import horovod").returncode == 1


def test_another_horovod_is_neither_hidden_nor_removed(environment):
    _, library = environment
    info, package = library / "horovod-0.28.0.dist-info", library / "horovod"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.0\n")
    (info / "INSTALLER").write_text("pip\n")
    done = compat(environment, "--install")
    assert done.returncode == 1 and done.stderr.startswith("horocache: Horovod 0.28.0 is installed already")
    assert "nothing of it" in compat(environment, "--uninstall").stdout and (info / "METADATA").exists()
    for path in info.iterdir():
        path.unlink()
    info.rmdir()
    package.mkdir()
    (package / "__init__.py").touch()
    done = compat(environment, "--install")
    assert done.returncode == 1 and "there is a package horovod already" in done.stderr
    (package / "__init__.py").unlink()
    package.rmdir()
    command = environment[0] / "bin" / "horovodrun"
    command.write_text("#!/bin/sh\n")
    done = compat(environment, "--install")
    assert done.returncode == 1 and "there is a command" in done.stderr
    assert "nothing of it" in compat(environment, "--uninstall").stdout and command.read_text() == "#!/bin/sh\n"
    command.unlink()


def test_horocache_itself_must_be_in_the_environment(tmp_path):
    folder = tmp_path / "empty"
    venv.create(folder, with_pip=False, symlinks=True)
    command = [str(folder / "bin" / "python"), "-m", "horocache.tools", "compat", "--install"]
    path = f"{ROOT}:{sysconfig.get_path('purelib')}"
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env={"PYTHONPATH": path})
    assert done.returncode == 1 and "is not installed in" in done.stderr and "install it first" in done.stderr


def test_the_version_is_available_without_an_installation():
    program = "import importlib.metadata as m, horovod; print(horovod.__version__ == m.version('horovod'))"
    command = [sys.executable, "-m", "horocache.compat", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
