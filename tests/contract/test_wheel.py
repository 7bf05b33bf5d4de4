"""`make dist`: a wheel, built from the source distribution, that works in a clean environment without a compiler."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_SOURCES = shutil.ignore_patterns(
    ".git", ".venv*", "build", "dist", "results", "*.so", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
)
FOLDERS = ("cpp_core", "horocache", "framework_bindings", "tests", "docs")
PROGRAM = """
import numpy as np
import horocache as hc
hc.init()
print(hc.__version__, hc.rank(), hc.allreduce(np.ones(2, dtype=np.float32), op=hc.Sum).tolist())
hc.shutdown()
"""

pytestmark = pytest.mark.timeout(600)  # the core is compiled once


def run(*command: object, **options: object) -> str:
    """Run a command and return its output, which is the assertion's message if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def dist() -> Iterator[Path]:
    """A source distribution of the current tree, and the wheel built from it.

    The build uses the compiler, the options and the relative paths (to the sources and to pybind11) of ``make build``,
    so that ccache, if it is installed, has the objects.
    """
    folder = ROOT / "build" / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT, folder / "source", ignore=NOT_SOURCES)
    # The isolated environment holds only what pyproject.toml requires, so that a missing package shows.
    run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, folder / "source")
    [sources] = folder.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / sources.name.removesuffix(".tar.gz")
    (unpacked / ".venv").symlink_to(sys.prefix)
    extra = folder / "extra.cfg"
    extra.write_text("[build]\nbuild_temp = build\n")
    environment = {"CXX": "c++", **os.environ, "DIST_EXTRA_CONFIG": str(extra)}
    environment["PATH"] = f"{unpacked}/.venv/bin{os.pathsep}{os.environ['PATH']}"
    # The only setting that is not a user's; ccache has no objects of another one.
    warnings = f"--config-settings=cmake.define.HC_WERROR={'ON' if os.environ.get('CI') else 'OFF'}"
    command = [unpacked / ".venv/bin/python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*command, "--wheel-dir", folder, warnings, unpacked, env=environment)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def wheel(dist) -> Path:
    [path] = dist.glob("*.whl")
    return path


def test_the_source_distribution_holds_the_whole_source(dist):
    [path] = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {
            member.name.partition("/")[2]: archive.extractfile(member).read()
            for member in archive.getmembers()
            if member.isfile()
        }
    source = dist / "source"
    inside = (path for folder in FOLDERS for path in (source / folder).rglob("*") if path.is_file())
    files = {str(path.relative_to(source)): path for path in inside}
    assert {"cpp_core/base/knobs.def", "framework_bindings/torch/__init__.py"} <= files.keys()
    assert {"LICENSE", "Makefile", ".ci/run"} <= held.keys()
    assert not sorted(files.keys() - held.keys())
    assert not [name for name, path in files.items() if held[name] != path.read_bytes()]
    assert not [name for name in held if name.endswith((".so", ".pyc"))]


def test_the_wheel_holds_packages_and_binaries_and_no_source_of_the_core(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    bindings = ROOT / "framework_bindings"
    modules = {f"horocache/{path.relative_to(bindings)}" for path in bindings.rglob("*.py")}
    modules |= {str(path.relative_to(ROOT)) for path in (ROOT / "horocache").rglob("*.py")}
    others = {"py.typed", "_core.pyi", "libhorocache.so", "libhorocache_tf.so"}
    missing = (modules | {f"horocache/{name}" for name in others}) - names
    assert "horocache/tensorflow/keras/__init__.py" in modules and not missing
    assert not [name for name in names if name.endswith((".cc", ".h", ".def", ".in")) or "_testing." in name]
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"horocache"}


def test_the_wheel_works_in_a_clean_environment_without_a_compiler(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    folder = tmp_path / "venv" / "bin"
    run(folder / "python", "-m", "pip", "install", "--quiet", "--only-binary=:all:", wheel)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOROCACHE_"))}
    environment["PATH"] = str(folder)  # no compiler, no cmake
    options = {"cwd": tmp_path, "env": environment, "timeout": 60}
    assert run(folder / "python", "-c", PROGRAM, **options).split() == ["0.1.0", "0", "[1.0,", "1.0]"]
    two = run(folder / "horocacherun", "-np", "2", folder / "python", "-c", PROGRAM, **options)
    assert "[0] 0.1.0 0 [2.0, 2.0]" in two
    assert "[1] 0.1.0 1 [2.0, 2.0]" in two
    program = "from importlib.util import find_spec; print(find_spec('framework_bindings'))"
    assert run(folder / "python", "-c", program, **options).strip() == "None"
