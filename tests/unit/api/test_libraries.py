"""The folders in which shared libraries of the environment are searched, and the findings of the doctor."""

import subprocess
import sys

import pytest

from horocache.core.library_path import library_path
from horocache.doctor import libraries
from horocache.doctor.finding import State


def test_libraries_of_layered_environments_are_found(tmp_path, monkeypatch):
    own, below = tmp_path / "own", tmp_path / "below"
    packages = [place / "lib" / "python3.11" / "site-packages" for place in (own, below)]
    for folder in packages:
        folder.mkdir(parents=True)
    (below / "lib" / "libmpi.so.40").touch()
    (packages[1] / "nvidia" / "nccl" / "lib").mkdir(parents=True)
    (packages[1] / "nvidia" / "nccl" / "lib" / "libnccl.so.2").touch()
    monkeypatch.setattr(sys, "prefix", str(own))
    monkeypatch.setattr(sys, "path", ["", *map(str, packages), "/"])
    assert library_path().split(":")[:2] == [str(own / "lib"), str(below / "lib")]
    assert libraries.mpi_names()[0] == str(below / "lib" / "libmpi.so.40")
    nccl = packages[1] / "nvidia" / "nccl" / "lib"
    assert str(nccl) in library_path().split(":")
    assert libraries.nccl_names() == [str(nccl / "libnccl.so.2"), "libnccl.so.2"]
    monkeypatch.setenv("HOROCACHE_NCCL_LIBRARY", "libnccl-own.so.2")
    assert libraries.nccl_names() == ["libnccl-own.so.2"]


MPI = """
#include <string.h>
int MPI_Get_library_version(char* text, int* length) {
  strcpy(text, "an MPI of this test");
  *length = (int)strlen(text);
  return 0;
}
"""


def finding_about_mpi(monkeypatch, names):
    monkeypatch.setattr(libraries, "mpi_names", lambda: [str(name) for name in names])
    [finding] = [finding for finding in libraries.look() if finding.name == "MPI"]
    return finding


def test_the_doctor_takes_the_next_library_as_a_job_does_where_one_does_not_load(tmp_path, monkeypatch):
    script, source, library = tmp_path / "libmpi.so", tmp_path / "mpi.c", tmp_path / "libmpi.so.40"
    script.write_text("INPUT(libmpi.so.40)\n")
    source.write_text(MPI)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    finding = finding_about_mpi(monkeypatch, [script, library])
    assert finding.state is State.OK and "an MPI of this test" in finding.value


def test_the_doctor_warns_of_a_library_that_does_not_load_if_there_is_no_other(tmp_path, monkeypatch):
    script = tmp_path / "libmpi.so"
    script.write_text("INPUT(libmpi.so.40)\n")
    finding = finding_about_mpi(monkeypatch, [script])
    assert finding.state is State.WARNING and str(script) in finding.value


@pytest.mark.parametrize(
    ("version", "machine", "fault"),
    [
        ("2.28.9", "x86_64", ""),
        ("2.30.4", "x86_64", "hangs now and then"),
        ("2.30.7", "x86_64", ""),
        ("2.28.9", "aarch64", "before 2.29.3 may hang"),
        ("2.29.3", "aarch64", ""),
        ("2.12.12", "x86_64", "needs NCCL 2.14.3 or newer"),
    ],
)
def test_the_doctor_knows_the_versions_of_nccl_that_do_not_work(version, machine, fault):
    known = libraries.nccl_fault(version, machine)
    assert fault in known and bool(fault) == bool(known)


def finding_about(name, tmp_path, monkeypatch, code):
    """The doctor's finding about a library of this C code."""
    source, library = tmp_path / f"{name}.c", tmp_path / f"lib{name}.so.2"
    source.write_text(code)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv(f"HOROCACHE_{name}_LIBRARY", str(library))
    [finding] = [finding for finding in libraries.look() if finding.name == name]
    return finding, f" at {library}"


NCCL = "int ncclGetVersion(int* version) {{ *version = {}; return 0; }}\n"


def test_the_doctor_warns_of_a_version_of_nccl_that_hangs(tmp_path, monkeypatch):
    finding, place = finding_about("NCCL", tmp_path, monkeypatch, NCCL.format(23004))
    assert finding.state is State.WARNING and finding.value == "2.30.4" + place and "2167" in finding.fix


def test_the_doctor_says_what_an_older_nccl_lacks(tmp_path, monkeypatch):
    finding, place = finding_about("NCCL", tmp_path, monkeypatch, NCCL.format(22203))
    lacks = "windows (from 2.27.3), reports on its state as JSON (from 2.28.7), ranks that share a GPU (from 2.30.3)"
    assert finding.state is State.OK and finding.value == f"2.22.3{place}; lacks {lacks}"


@pytest.mark.parametrize(
    ("version", "error", "says", "fix"),
    [
        (13000, 0, "driver for CUDA 13.0, 2 device(s)", ""),
        (13000, 100, "driver for CUDA 13.0, cuInit failed with error 100", "see whether nvidia-smi shows a GPU"),
        (10020, 0, "driver for CUDA 10.2, 2 device(s)", "needs a driver for CUDA 11.0 or newer"),
    ],
)
def test_the_doctor_warns_of_a_driver_that_cannot_be_used(version, error, says, fix, tmp_path, monkeypatch):
    code = f"""
int cuInit(unsigned flags) {{ return {error}; }}
int cuDriverGetVersion(int* version) {{ *version = {version}; return 0; }}
int cuDeviceGetCount(int* count) {{ *count = 2; return {error}; }}
"""
    finding, place = finding_about("CUDA", tmp_path, monkeypatch, code)
    assert finding.value == says + place and fix in finding.fix
    assert finding.state is (State.WARNING if fix else State.OK)
