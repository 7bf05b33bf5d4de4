"""``seeds.py FOLDER``: writes compiled programs, the fuzzer's initial corpus."""

import sys
from pathlib import Path

from horocache.lang import algorithms, compile_program
from horocache.lang.formats.core_words import pack, pack_library

PROGRAMS = {
    "ring": lambda: algorithms.ring(3, instances=2),
    "all_pairs": lambda: algorithms.all_pairs(3),
    "halving_doubling": lambda: algorithms.halving_doubling(5),
    "hierarchical": lambda: algorithms.hierarchical(2, 2),
    "three_step": lambda: algorithms.three_step_alltoall(2, 2),
    "all_to_next": lambda: algorithms.all_to_next(2, 2),
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    compiled = {name: compile_program(write()) for name, write in PROGRAMS.items()}
    for name, program in compiled.items():
        (folder / name).write_bytes(pack(program))
    library = [(name, compiled[name], True) for name in ("ring", "three_step")]
    (folder / "library").write_bytes(pack_library(library, "allreduce=program/ring"))
