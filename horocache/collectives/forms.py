"""Derives the public forms of a collective from one description.

A collective has up to eight forms: its name with or without ``grouped_`` (several tensors as one operation), ``_async``
(returns a handle) and a trailing underscore (stores the results in the tensors). Its file has one method that starts
the operation, and a :class:`Collective`, which describes the arguments and the results. The decorator :func:`forms`
adds a method for each form, with its full signature and a docstring that stands alone. The methods are compiled from
source, as those of ``dataclasses`` are, so that a call costs no more than a call of a method that is written out.

``operations.pyi``, which ``make docs`` writes, shows the methods to type checkers and editors.
"""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

from horocache.collectives.arguments import Name
from horocache.collectives.completion import Handle, synchronize
from horocache.collectives.reduce_op import Average
from horocache.collectives.transforms import AnyCompressor
from horocache.core.process_set import ProcessSet, global_process_set

C = TypeVar("C")
_WIDTH = 112  # of the text of a docstring, whose lines are indented by 8


@dataclass(frozen=True)
class Parameter:
    """A parameter of a collective's forms, other than its tensors."""

    name: str
    type: str
    doc: str
    default: str | None = None  # as source; None: it must be given
    keyword_only: bool = False
    new_only: bool = False  # in-place forms lack it
    by_keyword_in_async: bool = False  # Horovod's asynchronous form lacks it; there it is keyword-only
    by_keyword_in_place: bool = False  # the same of Horovod's in-place forms


NAME = Parameter(
    "name", "Name", "identifies the operation across ranks; generated from the program order when omitted.", "None"
)
PROCESS_SET = Parameter("process_set", "ProcessSet", "the ranks that take part.", "global_process_set")
BACKEND = Parameter(
    "backend",
    "str | None",
    'the backend that runs the operation, such as ``"shm"`` or, with an algorithm, ``"shm/twoshot"``; the same on all '
    "ranks. None: the selector chooses.",
    "None",
    keyword_only=True,
)
PRIORITY = Parameter(
    "priority",
    "int",
    "of the operations that the ranks agree on in one round, those with higher priorities run earlier; those with "
    "equal priorities run in the order in which the ranks first agreed on them. Operations that run already are not "
    "overtaken, and small operations are still fused. A 32-bit integer, the same on all ranks.",
    "0",
    keyword_only=True,
)
COMPRESSION = Parameter(
    "compression",
    "AnyCompressor | None",
    "a class of ``Compression``, the same on all ranks; None is ``Compression.none``.",
    "None",
    new_only=True,
    by_keyword_in_async=True,
)
COMPRESSION_OF_ALLREDUCE = Parameter(
    "compression",
    "AnyCompressor | None",
    "a class of ``Compression``, or a codec such as ``Compression.zfp(tolerance=1e-3)``; the same on all ranks. None "
    "is ``Compression.none``. A codec needs Sum or Average; the ranks then gather the encoded tensors, by an allgather "
    "that ``backend`` runs, and every rank decodes and adds them.",
    "None",
    by_keyword_in_async=True,
    by_keyword_in_place=True,
)
PRESCALE = Parameter("prescale_factor", "float", "multiplies every rank's tensor before the reduction.", "1.0")
POSTSCALE = Parameter("postscale_factor", "float", "multiplies the result.", "1.0")
ROOT = Parameter("root_rank", "int", "a global rank in the set.")
_REDUCTIONS = (
    "Sum, Min, Max or Product; for integers also And, Or and Xor of their bits, which are logical for bool. Integers "
    "are added in their own type, in which a sum may wrap around; averages of integers are truncated towards zero."
)
OP = Parameter("op", "int", f"Average (the default), {_REDUCTIONS}", "Average")
OP_WITH_ADASUM = Parameter(
    "op",
    "int | None",
    f"Average (the default), {_REDUCTIONS} For floating-point tensors also Adasum; the number of ranks must then be a "
    "power of two.",
    "None",
)
AVERAGE = Parameter("average", "bool | None", "deprecated, use ``op``.", "None")

_ALWAYS_RAISED = (
    "NotInitializedError: before ``init()``.\n"
    "DuplicateNameError: an operation of this name is in flight.\n"
    "PeerLostError, StallError, ShutDownError, AbortedError: the operation failed."
)


_RAISED_AT_ONCE = ("InvalidArgumentError", "UnsupportedError", "NotInitializedError", "DuplicateNameError")


@dataclass(frozen=True)
class Text:
    """The sentences of a docstring that differ between collectives."""

    summary: str  # one sentence, which begins with a verb
    tensor: str  # describes the tensor
    returns: str
    raises: str  # one line for each error that is not common to all collectives
    details: str = ""  # a paragraph behind the summary


@dataclass(frozen=True)
class Collective:
    """The description of a collective, from which its forms are derived.

    The method that starts the operation takes the list of tensors, the parameters in their order, ``group`` if there
    are grouped forms, ``in_place`` if there are in-place forms, and ``wait_follows``. It returns a handle.
    """

    name: str
    start: str  # the name of that method
    parameters: tuple[Parameter, ...]
    text: Text
    result: str = "T"  # type of the result for one tensor
    group_result: str = "list[T]"
    grouped: bool = True
    is_horovods: bool = True  # False: all parameters behind the tensor are keyword-only
    in_place: Text | None = None  # None: it has no in-place forms
    # The names of methods that start in-place operations, for one tensor (not a list) and for a group; they lack the
    # arguments `group` and `in_place`. None: `start` does it.
    start_in_place: tuple[str, str] | None = None


@dataclass(frozen=True)
class Form:
    """One public method of a collective."""

    collective: Collective
    group: bool
    in_place: bool
    blocking: bool

    @property
    def name(self) -> str:
        """The method's name."""
        head = "grouped_" if self.group else ""
        return f"{head}{self.collective.name}{'' if self.blocking else '_async'}{'_' if self.in_place else ''}"

    def parameters(self) -> list[Parameter]:
        """The parameters in the order of the signature: those that are keyword-only come last."""
        present = [each for each in self.collective.parameters if not (self.in_place and each.new_only)]
        return sorted(present, key=self._is_keyword_only)

    def _is_keyword_only(self, parameter: Parameter) -> bool:
        by_keyword = parameter.keyword_only or not self.collective.is_horovods
        by_keyword = by_keyword or (parameter.by_keyword_in_place and self.in_place)
        return by_keyword or (parameter.by_keyword_in_async and not self.blocking)

    def written_parameters(self) -> list[str]:
        """The parameters as source, with annotations."""
        tensors = "tensors: Sequence[T]" if self.group else "tensor: T"
        written = ["self", tensors]
        for parameter in self.parameters():
            if self._is_keyword_only(parameter) and "*" not in written:
                written.append("*")
            default = "" if parameter.default is None else f" = {parameter.default}"
            written.append(f"{parameter.name}: {parameter.type}{default}")
        return written

    def result(self) -> str:
        """The type of what the method returns."""
        if not self.blocking:
            return "Handle"
        return self.collective.group_result if self.group else self.collective.result

    def call(self) -> str:
        """The expression that starts the operation."""
        described = self.collective
        if self.in_place and described.start_in_place is not None:
            start, tensors = described.start_in_place[self.group], "tensors" if self.group else "tensor"
            values = [each.name for each in described.parameters if not each.new_only]
        else:
            start, tensors = described.start, "tensors" if self.group else "[tensor]"
            values = [
                str(each.default) if self.in_place and each.new_only else each.name for each in described.parameters
            ]
            values += [str(self.group)] if described.grouped else []
            values += [str(self.in_place)] if described.in_place is not None else []
        return f"self.{start}({', '.join(map(str, [tensors, *values, self.blocking]))})"

    def source(self) -> str:
        """The method's definition."""
        value = f"{'synchronize' if self.blocking else 'Handle'}({self.call()})"
        return f"def {self.name}({', '.join(self.written_parameters())}) -> {self.result()}:\n    return {value}\n"

    def docstring(self) -> str:
        """The method's docstring."""
        text = self.collective.in_place if self.in_place else self.collective.text
        assert text is not None
        summary, details = text.summary, text.details
        tensor, returns = f"tensor: {text.tensor}", text.returns
        if self.group:
            details = f"Several tensors as one group, which runs when all ranks have submitted all of it. {details}"
            tensor = f"tensors: a list with at least one tensor. Each: {text.tensor}"
            returns = f"A list, in the order of ``tensors``. For each: {_lower(text.returns)}"
        if not self.blocking:
            blocking = Form(self.collective, self.group, self.in_place, blocking=True)
            subject, use = "tensors" if self.group else "tensor", "be used" if self.in_place else "change"
            until = f"The {subject} must not {use} until synchronize() has returned."
            details = " ".join(filter(None, [summary, details.strip(), until]))
            summary = f"Start {blocking.name}() and return a handle."
            returns = f"A handle for synchronize(), which returns {_lower(returns)}"
        arguments = [tensor, *(f"{each.name}: {each.doc}" for each in self.parameters())]
        raises = [*text.raises.splitlines(), *_ALWAYS_RAISED.splitlines()]
        if not self.blocking:
            raises = [
                each if each.startswith(_RAISED_AT_ONCE) else f"{each} synchronize() raises it." for each in raises
            ]
        parts = [_filled(summary), _filled(details), _section("Args", arguments)]
        return "\n\n".join(filter(None, [*parts, _section("Returns", [returns]), _section("Raises", raises)])) + "\n"


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _filled(text: str, first: str = "", rest: str = "") -> str:
    return "\n".join(textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False))


def _section(title: str, entries: list[str]) -> str:
    further = "" if title == "Returns" else "    "
    return "\n".join([f"{title}:", *(_filled(each, "    ", f"    {further}") for each in entries)])


def forms_of(collective: Collective) -> Iterator[Form]:
    """Yield the collective's forms."""
    for group, in_place, blocking in product((False, True), (False, True), (False, True)):
        if (collective.grouped or not group) and (collective.in_place is not None or not in_place):
            yield Form(collective, group, in_place, blocking)


def forms(*described: Collective) -> Callable[[type[C]], type[C]]:
    """Return a class decorator that adds the public methods of these collectives."""

    def add(cls: type[C]) -> type[C]:
        for collective in described:
            for form in forms_of(collective):
                setattr(cls, form.name, _method(cls, form))
        return cls

    return add


def _method(cls: type, form: Form) -> Any:
    source = form.source()
    file = f"<{cls.__module__}.{cls.__qualname__}.{form.name}>"
    names: dict[str, Any] = {
        "__name__": cls.__module__,
        **{each.__name__: each for each in (Any, Sequence, ProcessSet)},
        "T": TypeVar("T"),
        "Name": Name,
        "AnyCompressor": AnyCompressor,
        "Handle": Handle,
        "synchronize": synchronize,
        "Average": Average,
        "global_process_set": global_process_set,
    }
    exec(compile(f"from __future__ import annotations\n{source}", file, "exec"), names)  # noqa: S102  (our own text)
    linecache.cache[file] = (len(source), None, ["\n", *source.splitlines(keepends=True)], file)  # for tracebacks
    method = names[form.name]
    method.__doc__ = form.docstring()
    method.__qualname__ = f"{cls.__qualname__}.{form.name}"
    return method
