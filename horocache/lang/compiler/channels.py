"""Channel assignment: the channel of each message, and the receives and sends that are fused.

Note [Chains]
A chain is a message, the send that is fused into its receive, the message of this send, and so on. All messages of a
chain use one channel. A thread block has one peer to send to and one peer to receive from, so two chains that cross at
a rank in different directions need different channels. Chains are placed in program order, each on the first channel
where it contradicts no earlier chain.
A placement implies *facts*, which are keys with values. A chain contradicts an earlier one if a key gets two values.
For example, the chain 0 -> 1 -> 2 on channel 0 implies that the thread block of rank 1 that receives from rank 0 on
this channel sends to rank 2. The chain 0 -> 1 -> 3 would imply that it sends to rank 3, so it is put on channel 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from horocache.lang.errors import ScheduleError
from horocache.lang.frontend.trace import MAX_CHANNELS
from horocache.lang.program.instruction_dag import Instruction

Fact = tuple[Any, ...]


class Channels:
    """The channel assignment that :func:`assign` makes.

    Attributes:
        pairs: receives, each with the send that is fused into it.
        of: the channel of each message, by the number of its send; every lane counts its own channels.
    """

    def __init__(self) -> None:
        self.pairs: dict[int, int] = {}
        self.of: dict[int, int] = {}
        self._facts: dict[Fact, Any] = {}

    def partner(self, rank: int, lane: tuple[int, ...], receives: bool, peer: int, channel: int) -> int | None:
        """The other peer of the thread block that exchanges messages with ``peer``; None if it fuses nothing."""
        found: int | None = self._facts.get(("into" if receives else "from", lane, rank, peer, channel))
        return found

    def take(self, facts: list[tuple[Fact, Any]]) -> tuple[Fact, Any, Any] | None:
        """Add these facts. If one contradicts, add none and return its key, the known value and the new value."""
        new: dict[Fact, Any] = {}
        for key, value in facts:
            known = self._facts.get(key, new.get(key, value))
            if known != value:
                return key, known, value
            new[key] = value
        self._facts.update(new)
        return None


def assign(instructions: Sequence[Instruction], candidates: dict[int, int], spread: int = 1) -> Channels:
    """Assign a channel to every message.

    Args:
        instructions: the instructions before fusion.
        candidates: receives, each with the send that could be fused into it.
        spread: number of channels over which the chains are distributed in turn, where no fact contradicts.

    Raises:
        ScheduleError: the user's thread blocks and channels contradict each other, or need too many channels.
    """
    channels = Channels()
    merged_sends = set(candidates.values())
    heads = (node for node in instructions if node.pushes_to is not None and node.number not in merged_sends)
    for number, head in enumerate(heads):
        _place_chain(channels, instructions, _chain(instructions, candidates, head), number % spread)
    return channels


def _chain(instructions: Sequence[Instruction], candidates: dict[int, int], first: Instruction) -> list[Instruction]:
    sends = [first]
    while (receive := sends[-1].pushes_to) in candidates:
        assert receive is not None
        sends.append(instructions[candidates[receive]])
    return sends


def _place_chain(channels: Channels, instructions: Sequence[Instruction], sends: list[Instruction], first: int) -> None:
    """Place a chain on one channel, if possible ``first``; if no channel takes it, place its two halves separately."""
    wanted = sends[0].operation.channel
    conflict = None
    for channel in (*range(first, MAX_CHANNELS), *range(first)) if wanted is None else (wanted,):
        conflict = channels.take(list(_facts(instructions, sends, channel)))
        if conflict is None:
            for send in sends:
                channels.of[send.number] = channel
            for before, after in pairwise(sends):
                assert before.pushes_to is not None
                channels.pairs[before.pushes_to] = after.number
            return
    if len(sends) == 1:
        assert conflict is not None
        raise ScheduleError(_text(conflict, sends[0], wanted), sends[0].operation.location)
    half = len(sends) // 2
    _place_chain(channels, instructions, sends[:half], first)
    _place_chain(channels, instructions, sends[half:], first)


def _facts(instructions: Sequence[Instruction], sends: list[Instruction], channel: int) -> Iterator[tuple[Fact, Any]]:
    lane = sends[0].lane
    before = None
    for send in sends:
        assert send.pushes_to is not None
        receive = instructions[send.pushes_to]
        source, destination = send.rank, receive.rank
        yield ("sending", lane, source, destination, channel), send.send_thread_block
        yield ("receiving", lane, destination, source, channel), receive.recv_thread_block
        if send.send_thread_block is not None:
            yield ("sends to", lane, source, send.send_thread_block), destination
            yield ("channel", lane, source, send.send_thread_block), channel
        if receive.recv_thread_block is not None:
            yield ("receives from", lane, destination, receive.recv_thread_block), source
            yield ("channel", lane, destination, receive.recv_thread_block), channel
        if before is not None:
            yield ("into", lane, source, before, channel), destination
            yield ("from", lane, source, destination, channel), before
        before = source


def _text(conflict: tuple[Fact, Any, Any], send: Instruction, wanted: int | None) -> str:
    (kind, _, rank, which, *_), known, new = conflict
    if kind in ("sending", "receiving"):
        peer = f"{'to' if kind == 'sending' else 'from'} rank {which}"
        text = (
            f"two thread blocks of rank {rank} are {kind} on one connection, {peer}: {_thread_block(known)} and "
            f"{_thread_block(new)}. Give them different channels, or one thread block."
        )
    elif kind in ("sends to", "receives from"):
        text = (
            f"thread block {which} of rank {rank} {kind} rank {known} and rank {new}; a thread block has one peer in a "
            "direction."
        )
    elif kind == "channel":
        text = (
            f"thread block {which} of rank {rank} is on channel {known} and on channel {new}; a thread block has one."
        )
    else:
        raise AssertionError(f"single message in conflict with a chain: {conflict}")
    if wanted is None and kind in ("sending", "receiving"):
        text = f"rank {send.rank} needs more than {MAX_CHANNELS} channels for its thread blocks; the last: " + text
    return text


def _thread_block(number: int | None) -> str:
    return "one of the compiler's" if number is None else f"thread block {number}"
