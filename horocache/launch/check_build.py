"""``--check-build``: frameworks, controllers and operations that jobs can use here, in ``horovodrun``'s format."""

from __future__ import annotations

from collections.abc import Iterator

from horocache.doctor import libraries


def report(version: str) -> str:
    """Return the lists of frameworks, controllers and operations, with an X at each one that is available."""
    found = {finding.name: finding.usable for finding in libraries.look()}
    lines = [f"horocache v{version}:"]
    for title, entries in _sections(found):
        lines += ["", f"Available {title}:"]
        lines += [f"    [{'X' if there else ' '}] {name}" for name, there in entries]
    return "\n".join(lines) + "\n"


def _sections(found: dict[str, bool]) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    mpi = found.get("MPI", False)
    yield (
        "Frameworks",
        [("NumPy", True), ("TensorFlow", found["tensorflow"]), ("PyTorch", found["torch"]), ("MXNet", False)],
    )
    yield "Controllers", [("shared memory", True), ("MPI", mpi), ("Gloo", False)]
    nccl = found.get("NCCL", False) and found.get("CUDA", False)
    operations = [("NCCL", nccl), ("DDL", False), ("CCL", False), ("MPI", mpi), ("Gloo", False)]
    yield "Tensor Operations", [("shared memory", True), *operations]
