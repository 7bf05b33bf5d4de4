"""The folders in which shared libraries of the environment are searched, and the findings of the doctor."""

import subprocess
import sys

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
