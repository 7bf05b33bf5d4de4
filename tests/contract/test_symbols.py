"""The C library exports what its header declares and nothing else; the Python module exports its entry point."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import horocache
from horocache import _core

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "cpp_core" / "capi" / "hc.h"

pytestmark = pytest.mark.skipif(shutil.which("nm") is None, reason="no nm (Debian: binutils)")


def exported(library: Path) -> set[str]:
    """The names that a shared library exports."""
    command = ["nm", "--dynamic", "--defined-only", "--extern-only", "--format=posix", str(library)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0] for line in lines}


def visible(library: Path) -> set[str]:
    """The exported names without templates of the C++ library, which the dynamic linker merges across libraries."""
    return {name for name in exported(library) if not name.startswith("_Z") or "horocache" in name}


def declared() -> set[str]:
    """The functions that hc.h declares."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
    return set(re.findall(r"\bHC_API\b[^;]*?\b(hc_\w+)\s*\(", text))


def test_the_c_library_exports_exactly_what_its_header_declares():
    library = Path(horocache.__file__).parent / "libhorocache.so"
    names = declared()
    assert len(names) > 5, "the pattern finds no functions in hc.h"
    assert visible(library) == names


def test_the_python_module_exports_its_entry_point_only():
    assert visible(Path(_core.__file__)) == {"PyInit__core"}


def test_tensorflows_library_exports_the_functions_that_python_calls():
    names = visible(Path(horocache.__file__).parent / "libhorocache_tf.so")
    assert names == {"hc_tf_attach", "hc_tf_detach", "hc_tf_forked_child", "hc_tf_problem", "hc_tf_raise_interrupt"}


def test_tensorflows_library_reports_a_missing_tensorflow():
    library = Path(horocache.__file__).parent / "libhorocache_tf.so"
    program = f"import ctypes; f = ctypes.CDLL({str(library)!r}).hc_tf_problem; f.restype = ctypes.c_char_p; print(f())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "this process has not loaded TensorFlow's libtensorflow_framework.so" in done.stdout


@pytest.mark.parametrize("name", [Path(_core.__file__).name, "libhorocache.so", "libhorocache_tf.so"])
def test_the_binaries_need_no_framework_and_no_mpi(name):
    library = Path(_core.__file__).parent / name
    needed = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"torch|tensorflow|libmpi|nccl|cuda|python", needed)
