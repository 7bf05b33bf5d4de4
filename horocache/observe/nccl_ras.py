"""Asks NCCL which operations the ranks of a job have launched.

NCCL has a service for such questions, RAS, from 2.24 on, and it answers in JSON from 2.28.7 on. It knows what each rank
of a communicator has launched, and which processes do not answer. One process of each host listens, for all jobs there:
on NCCL_RAS_ADDR, else on port 28028. (NCCL User Guide, "RAS".)
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from horocache.base.untrusted_text import printable
from horocache.observe.flight import NoAnswerError, receive
from horocache.observe.records import MOST_BYTES, Number, Record

_DEFAULT_ADDRESS = "localhost:28028"
_PROTOCOL = 2  # of the clients that NCCL ships; NCCL answers every one
_NCCL_TIMEOUT_S = 5  # for NCCL's processes among each other
_TIMEOUT_S = 10.0  # for the whole answer


class Status(msgspec.Struct, frozen=True, gc=False):
    """The state of a communicator on one rank."""

    async_error: Number = 0  # an ncclResult_t
    abort_flag: bool = False


class CommunicatorRank(msgspec.Struct, frozen=True):
    """One rank of a communicator."""

    rank: Number
    host: str
    pid: Number
    status: Status
    collective_counts: dict[str, Number]  # of launched calls, by the function's name without "nccl"


class MissingStatus(msgspec.Struct, frozen=True, gc=False):
    """Why NCCL knows nothing about a rank."""

    unresponsive: bool = False
    considered_dead: bool = False


class MissingRank(msgspec.Struct, frozen=True, gc=False):
    """A rank whose process gave NCCL no answer."""

    rank: Number
    host: str
    pid: Number
    status: MissingStatus


class Communicator(msgspec.Struct, frozen=True):
    """A communicator of a job on this host; maybe another one's."""

    hash: str
    size: Number
    ranks: list[CommunicatorRank]
    missing_ranks: list[MissingRank]


class Report(msgspec.Struct, frozen=True):
    """NCCL's answer."""

    nccl_version: str
    communicators: list[Communicator]


def describe_jobs(records: Sequence[Record]) -> list[str]:
    """Return, as lines, what NCCL knows about the communicators of ranks that run on this host.

    A reason, if NCCL does not answer; nothing, if no rank has loaded NCCL.
    """
    ranks = {record.pid: record.rank for record in records if _has_nccl(record.pid)}
    lines: list[str] = []
    for address in sorted({_address(pid) for pid in ranks}):
        try:
            report = ask(address)
        except NoAnswerError as error:
            lines.append(f"NCCL's state is not known: {error}")
            continue
        lines += describe(report, ranks, _own_addresses())
    return lines


def _own_addresses() -> set[str]:
    found = psutil.net_if_addrs().values()
    return {address.address.partition("%")[0] for addresses in found for address in addresses}


def _has_nccl(pid: int) -> bool:
    try:
        return "/libnccl" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended, or belongs to another user
        return False


def _address(pid: int) -> str:
    try:
        return psutil.Process(pid).environ().get("NCCL_RAS_ADDR", _DEFAULT_ADDRESS)
    except psutil.Error:
        return _DEFAULT_ADDRESS


def ask(address: str) -> Report:
    """Ask the process that listens at ``address``, a "HOST:PORT".

    Raises:
        NoAnswerError: the address is invalid, or no process with NCCL 2.28.7 or newer answers there in time.
    """
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise NoAnswerError(f"NCCL_RAS_ADDR='{printable(address)}' is not HOST:PORT")
    until = time.monotonic() + _TIMEOUT_S
    commands = {
        f"CLIENT PROTOCOL {_PROTOCOL}\n": "SERVER PROTOCOL ",
        f"TIMEOUT {_NCCL_TIMEOUT_S}\n": "OK",
        "SET FORMAT json\n": "OK",
    }
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT_S) as asking:
            for command, expected in commands.items():
                asking.sendall(command.encode())
                line = _read_line(asking, until)
                if not line.startswith(expected):
                    wrong = printable(f"{command.strip()} with '{line}'")
                    raise NoAnswerError(f"{address} answers {wrong}; it takes NCCL 2.28.7 or newer")
            asking.sendall(b"STATUS\n")
            answer = receive(asking, until)
    except (OSError, UnicodeError) as error:  # the latter for the host
        raise NoAnswerError(f"{printable(address)} does not answer: {error}") from error
    if len(answer) > MOST_BYTES:
        raise NoAnswerError(f"{address} sends more than {MOST_BYTES} bytes")
    try:
        return msgspec.json.decode(answer, type=Report)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NoAnswerError(f"{address} sends an invalid answer: {printable(str(error))}") from None


def _read_line(asking: socket.socket, until: float) -> str:
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < 256:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        asking.settimeout(left)
        piece = asking.recv(1)
        if not piece:
            raise ConnectionResetError("it has closed the connection")
        line += piece
    return line.decode(errors="replace").strip()


def describe(report: Report, ranks: Mapping[int, int], here: Collection[str]) -> list[str]:
    """Return the state of the communicators that a process of ``ranks`` has, as lines.

    Args:
        report: NCCL's answer.
        ranks: horocache's rank of each process on this host. Other ranks have NCCL's number, process and host.
        here: this host's addresses.
    """

    def rank_of(member: CommunicatorRank | MissingRank) -> int | None:
        is_here = member.host.strip("[]").partition("%")[0] in here
        return ranks.get(member.pid) if is_here else None

    lines: list[str] = []
    for communicator in report.communicators:
        members: list[CommunicatorRank | MissingRank] = [*communicator.ranks, *communicator.missing_ranks]
        if any(rank_of(member) is not None for member in members):
            version = printable(report.nccl_version)
            lines.append(f"NCCL {version}, communicator {printable(communicator.hash)} of {communicator.size} ranks:")
            lines += [f"  {line}" for line in _describe(communicator, rank_of)]
    return lines


def _describe(
    communicator: Communicator, rank_of: Callable[[CommunicatorRank | MissingRank], int | None]
) -> Iterable[str]:
    def name(member: CommunicatorRank | MissingRank) -> str:
        known = rank_of(member)
        if known is not None:
            return f"rank {known}"
        return f"NCCL's rank {member.rank} (process {member.pid} on {printable(member.host)})"

    alike: list[str] = []
    for function in sorted({function for rank in communicator.ranks for function in rank.collective_counts}):
        by_count: dict[int, list[str]] = {}
        for rank in communicator.ranks:
            by_count.setdefault(rank.collective_counts.get(function, 0), []).append(name(rank))
        if len(by_count) > 1:
            launched = "; ".join(f"{count} by {', '.join(by_count[count])}" for count in sorted(by_count, reverse=True))
            yield f"{printable(function)}, launched: {launched}"
        elif 0 not in by_count:
            alike += [f"{count} {printable(function)}" for count in by_count]
    if alike:
        yield f"launched by each: {', '.join(alike)}"
    for rank in communicator.ranks:
        if rank.status.async_error:
            yield f"{name(rank)} has the error {rank.status.async_error} of NCCL"
        if rank.status.abort_flag:
            yield f"{name(rank)} has aborted"
    for missing in communicator.missing_ranks:
        yield f"{name(missing)} {_state(missing.status)}, as NCCL sees it"


def _state(status: MissingStatus) -> str:
    if status.considered_dead:
        return "is dead"
    return "does not answer" if status.unresponsive else "has left the communicator"
