"""Program files: JSON with a schema, a version, and a hash of the contents.

The reader does not trust a file: it decodes the file by the schema, compares the hash, checks every number, and proves
the program again before it returns it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from horocache.base.untrusted_text import pointer_first, read_regular_file
from horocache.lang.errors import ProgramError, ProgramFileError
from horocache.lang.program.collective_spec import collective_of
from horocache.lang.program.compiled_program import CompiledProgram
from horocache.lang.verify.validate import MAX_RANKS
from horocache.lang.verify.verifier import Facts, verify

FORMAT = "horocache.program"
VERSION = 2
SUFFIX = ".program.json"
MAX_FILE_BYTES = 256 << 20


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["horocache.program"]
    version: int
    hash: str
    program: CompiledProgram


class _Head(msgspec.Struct, frozen=True):
    """The fields that every version of the format has."""

    format: Any = None
    version: Any = None


def hash_of(program: CompiledProgram) -> str:
    """Hash of the whole program: ``sha256:`` and 64 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(msgspec.json.encode(program)).hexdigest()


def encode(program: CompiledProgram) -> bytes:
    """Encode a program as the contents of a file; equal programs give equal bytes."""
    document = _Document("horocache.program", VERSION, hash_of(program), program)
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def save(program: CompiledProgram, path: str | os.PathLike[str]) -> None:
    """Write a program to a file atomically. Raises OSError."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_bytes(encode(program))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> CompiledProgram:
    """Read a program from a file and verify it.

    Raises:
        ProgramFileError: the file cannot be read, has another version, or does not hold a correct program. The message
            names the file and the place in it.
    """
    name = os.fspath(path)
    try:
        return decode(_read(name))
    except ProgramError as error:
        raise ProgramFileError(f"{name}: {error}") from None


def _read(name: str) -> bytes:
    try:
        return read_regular_file(name, MAX_FILE_BYTES)
    except ValueError as error:
        raise ProgramFileError(str(error)) from None


def decode(contents: bytes, *, expect_hash: bool = True) -> CompiledProgram:
    """Decode a program from the contents of a file and verify it.

    Args:
        contents: contents of a file.
        expect_hash: True if the hash must be right; False accepts a file that was edited by hand.

    Raises:
        ProgramFileError: the contents have another version, or do not hold a correct program. The message names the
            place in the file.
    """
    document = _decode_document(contents)
    program = document.program
    if expect_hash and document.hash != hash_of(program):
        raise ProgramFileError(
            f"/hash: the contents have {hash_of(program)}, and the file has {document.hash[:80]!r}: it was damaged, "
            "or changed by hand. `horocache lang check --rehash` proves it and writes the hash."
        )
    facts = _prove(program)
    if program.rank_order and not facts.rank_order:
        raise ProgramFileError("/program/rank_order: is true, but sums are not folded in rank order.")
    return msgspec.structs.replace(facts.marked(program), rank_order=program.rank_order)


def _decode_document(contents: bytes) -> _Document:
    try:
        head = msgspec.json.decode(contents, type=_Head)
        if head.format != FORMAT:
            raise ProgramFileError(f"/format: {str(head.format)[:40]!r}; a program's is {FORMAT!r}.")
        if head.version != VERSION:
            raise ProgramFileError(f"/version: {str(head.version)[:40]}; this horocache reads {VERSION}.")
        return msgspec.json.decode(contents, type=_Document)
    except msgspec.ValidationError as error:
        raise ProgramFileError(pointer_first(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProgramFileError(f"is not JSON: {error}.") from None


def _prove(program: CompiledProgram) -> Facts:
    if not 1 <= program.ranks <= MAX_RANKS:
        raise ProgramFileError(f"/program/ranks: {program.ranks} is not from 1 to {MAX_RANKS}.")
    try:
        return verify(program, collective_of(program.collective, program.ranks))
    except ProgramError as error:
        raise ProgramFileError(str(error)) from None
