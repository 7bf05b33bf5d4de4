"""The options of every framework's DistributedOptimizer, and the buckets that they define."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral
from typing import Any, NamedTuple

from horocache.collectives.arguments import check_number, set_id
from horocache.collectives.compression import is_codec
from horocache.collectives.encoded_sum import check_codec_op
from horocache.collectives.reduce_op import Adasum, Average, check_op
from horocache.collectives.transforms import AnyCompressor, check_compressor
from horocache.core import context
from horocache.core.process_set import ProcessSet
from horocache.data_parallel.bucketing import NumGroups, group_count, split_by_bytes, split_by_count
from horocache.errors import InvalidArgumentError


class GradientOptions(NamedTuple):
    """The options for the reduction of gradients; the same on all ranks."""

    compression: AnyCompressor
    passes: int  # backward passes before a gradient is complete
    op: int
    prescale: float
    postscale: float
    num_groups: NumGroups  # 0: gradients are not grouped, except by `groups`
    groups: list[list[Any]] | None  # the user's groups of parameters
    sparse_as_dense: bool
    process_set: ProcessSet

    @property
    def takes_part(self) -> bool:
        """True if this rank has gradients to reduce with other ranks."""
        return self.process_set.included() and self.process_set.size() > 1


def gradient_options(
    *,
    compression: AnyCompressor,
    backward_passes_per_step: int,
    op: int,
    gradient_predivide_factor: float,
    num_groups: NumGroups,
    groups: Any,
    sparse_as_dense: bool,
    process_set: ProcessSet,
    check_members: Callable[[list[Any]], None],
    takes_codecs: bool = False,
) -> GradientOptions:
    """Check the arguments and return them as options.

    Args:
        compression: a compressor.
        backward_passes_per_step: a whole number from 1 on.
        op: a reduce operation. The caller must refuse Adasum or run it itself.
        gradient_predivide_factor: with Average, gradients are divided by this factor before the sum, and after it by
            the number of ranks divided by the factor.
        num_groups: a whole number from 0 on, or "auto".
        groups: None, a number with the meaning of ``num_groups``, or lists of parameters.
        sparse_as_dense: True if sparse gradients are made dense before they are reduced.
        process_set: a registered process set.
        check_members: raises unless the lists contain only parameters of the optimizer, each at most once.
        takes_codecs: True if the framework reduces gradients that are encoded by a codec.

    Raises:
        InvalidArgumentError: an argument is invalid, or two arguments exclude each other. UnsupportedError: the
            compression is a codec, and the framework or the op takes none. NotInitializedError: before ``init``.
    """
    if op != Adasum:
        check_op(op)
    set_id(process_set)
    if takes_codecs and is_codec(compression):
        check_codec_op(compression, op)
    else:
        check_compressor(compression)
    check_number("gradient_predivide_factor", gradient_predivide_factor)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidArgumentError("gradient_predivide_factor not supported with op != Average.")
    if not gradient_predivide_factor > 0:  # nor NaN
        raise InvalidArgumentError(f"gradient_predivide_factor must be > 0; it is {gradient_predivide_factor}.")
    check_passes(backward_passes_per_step)
    count, fixed = _checked_groups(num_groups, groups)
    if fixed is not None:
        check_members(fixed)
    return GradientOptions(
        compression=compression,
        passes=backward_passes_per_step,
        op=op,
        prescale=1.0 / gradient_predivide_factor,
        postscale=gradient_predivide_factor,
        num_groups=count,
        groups=fixed,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )


def check_passes(passes: int) -> None:
    """Raise InvalidArgumentError unless ``passes`` is a whole number from 1 on."""
    if not isinstance(passes, Integral) or passes <= 0:
        raise InvalidArgumentError(f"backward_passes_per_step must be a whole number > 0; it is {passes!r}.")


def _checked_groups(num_groups: NumGroups, groups: Any) -> tuple[NumGroups, list[list[Any]] | None]:
    """Return the number of groups to make (0: none), and the user's groups (None: there are none)."""
    if num_groups != "auto" and (not isinstance(num_groups, Integral) or num_groups < 0):
        raise InvalidArgumentError(f"num_groups must be a whole number of at least 0, or 'auto'; it is {num_groups!r}.")
    if groups is None:
        return num_groups, None
    if num_groups:
        raise InvalidArgumentError(f"num_groups={num_groups} and groups are both given; give one of them.")
    if isinstance(groups, Integral) and not isinstance(groups, bool) and groups > 0:
        return groups, None
    if not isinstance(groups, list):
        raise InvalidArgumentError(
            f"groups should be a positive integer or a list of lists of parameters, not {groups!r}."
        )
    return 0, groups


class Bucket(NamedTuple):
    """Gradients that are reduced by one operation, by their numbers."""

    members: list[int]
    group: bool

    def name(self, names: Sequence[str]) -> tuple[str, str]:
        """Return the operation and its name, which is made from the gradients' names."""
        first = names[self.members[0]]
        if not self.group:
            return "allreduce", first
        return "grouped_allreduce", f"{first}.and_{len(self.members) - 1}_more"


def buckets(
    order: Sequence[int],
    sizes: Sequence[int],
    dtypes: Sequence[Any],
    options: GradientOptions,
    number_of: Callable[[Any], int | None],
) -> list[Bucket]:
    """Divide gradients into buckets, in the order in which they are submitted.

    Args:
        order: the gradients' numbers, in the order in which they become ready.
        sizes: bytes of each gradient, by number; 0 if unknown.
        dtypes: element type of each gradient, by number; all gradients of a group have the same.
        options: number of groups, or the user's groups.
        number_of: returns the number of a parameter in the user's groups; None if it has no gradient.
    """
    if options.groups is not None:
        return _fixed(order, dtypes, [[number_of(parameter) for parameter in group] for group in options.groups])
    count = group_count(options.num_groups, [sizes[number] for number in order])
    if count == 0:
        return [Bucket([number], False) for number in order]
    by_count = context.current().runtime.knobs()["group_by"][0] == "count" or any(sizes[n] == 0 for n in order)
    runs = split_by_count(order, count) if by_count else split_by_bytes(order, sizes, count)
    return [bucket for run in runs for bucket in _of_one_dtype(run, dtypes)]


def _fixed(order: Sequence[int], dtypes: Sequence[Any], groups: Sequence[Sequence[int | None]]) -> list[Bucket]:
    """Return the user's groups, and each other gradient in a bucket of its own."""
    present = [[number for number in group if number is not None and number in order] for group in groups]
    grouped = {number for group in present for number in group}
    fixed = [bucket for group in present for bucket in _of_one_dtype(group, dtypes)]
    return fixed + [Bucket([number], False) for number in order if number not in grouped]


def _of_one_dtype(members: Sequence[int], dtypes: Sequence[Any]) -> list[Bucket]:
    by_dtype: dict[Any, list[int]] = {}
    for number in members:
        by_dtype.setdefault(dtypes[number], []).append(number)
    return [Bucket(same, True) for same in by_dtype.values()]


def members_of_lists(
    groups: Sequence[Any], what: str, accepts: Callable[[Any], bool], key: Callable[[Any], Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the members of the user's groups, each with its position as text for errors.

    Args:
        groups: the user's groups.
        what: the name of valid members in errors, such as "parameters".
        accepts: returns True if an object is a valid member.
        key: returns the identity of a member.

    Raises:
        InvalidArgumentError: a group is not a list of valid members, or a member is in groups more than once.
    """
    seen: set[Any] = set()
    for number, group in enumerate(groups):
        if not isinstance(group, (list, tuple)) or not all(map(accepts, group)):
            raise InvalidArgumentError(f"groups must consist of lists of {what}; groups[{number}] is {group!r}.")
        for position, member in enumerate(group):
            place = f"groups[{number}][{position}], of shape {tuple(member.shape)},"
            if key(member) in seen:
                raise InvalidArgumentError(f"{place} is in groups more than once.")
            seen.add(key(member))
            yield place, member


def variables_of_layers(layers: Any) -> Iterable[Any]:
    """Yield the trainable variables of a layer or of several layers; none for None."""
    if layers is None:
        return
    for layer in layers if isinstance(layers, (list, tuple, set)) else [layers]:
        weights = getattr(layer, "trainable_weights", None)
        if weights is None:
            raise InvalidArgumentError(f"local_layers must be Keras layers; {layer!r} has no trainable_weights.")
        yield from weights
