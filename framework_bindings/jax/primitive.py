"""The one JAX primitive that runs every operation, and its transformation rules.

Note [Operations in compiled functions]: an operation runs on the host. Each rank runs it once each time that the
program reaches it, in the same order on all ranks. Three things ensure this:

* The primitive has an ordered effect of its own. JAX threads a token through all operations with this effect, in all
  compiled functions of a process. They run one after the other, in the order in which the program dispatched the
  functions, and JAX does not remove, duplicate or reorder any. Jitted functions, loops, branches and
  ``jax.checkpoint`` preserve the effect.
* Operations in compiled functions have separate names, which begin with ``jit``. A compiled function runs
  asynchronously while the program goes on, so an operation that the program calls directly may run before it on one
  rank and after it on another. Because the two kinds never have equal names, neither gets the data of the other. The
  token orders the operations in compiled functions, so an operation without a name needs no number.
* An operation is an error where a function runs on several devices of a process at once (``shard_map``, ``pmap``). It
  would run once on each device, in the order in which the devices' threads reach it.

An operation is named when it runs and not when it is traced, because a rank may trace a function more often than
others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

import jax
from horocache.errors import UnsupportedError
from jax._src import effects  # the public API lacks the registries of effects for checkpoint and custom derivatives
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Arrays = Sequence[Any]


Places = Sequence[int | None]


def described(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and type of an array that does not exist yet, as JAX describes them."""
    return jax.ShapeDtypeStruct(tuple(shape), dtype)  # type: ignore[no-untyped-call]


class Operation(ABC):
    """An operation, as the parameter of the primitive.

    Role: immutable and hashable, because JAX compares operations when it looks up compiled functions.
    """

    has_effect: ClassVar[bool] = True
    """Whether it must run although nothing uses its results."""

    @abstractmethod
    def results(self, arrays: Arrays) -> Sequence[jax.ShapeDtypeStruct]:
        """Return the shapes and types of the results; ``arrays`` have the arguments' shapes and types."""

    @abstractmethod
    def run(self, arrays: Arrays, compiled: bool) -> Arrays:
        """Run the operation; ``compiled`` is True in a compiled function."""

    @abstractmethod
    def differentiated(self) -> tuple[Operation, Operation]:
        """Return the operation to run in a differentiated function, and the operation for the tangents.

        The results of both have the shapes that :meth:`results` returns.
        """

    @abstractmethod
    def cotangents(self, grads: Arrays, arrays: Arrays) -> Arrays:
        """Return the cotangents of the arguments, given those of the results.

        ``arrays`` have the arguments' shapes and types.
        """

    @abstractmethod
    def with_batches(self, arrays: Arrays, places: Places) -> tuple[Arrays, Places]:
        """Run the operation once on batched arrays.

        Args:
            arrays: the arguments.
            places: for each argument the dimension of the batch, or None if the argument has no batch.

        Returns:
            The results, and for each result the dimension of the batch.
        """


class _Order(effects.Effect):
    """The effect that orders operations. Role: one object."""

    def __str__(self) -> str:
        return "horocache"

    __repr__ = __str__


_ORDER = _Order()

for _allowing in (
    effects.lowerable_effects,
    effects.ordered_effects,
    effects.shardable_ordered_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _allowing.add_type(_Order)

_operation: Any = Primitive("horocache")
_operation.multiple_results = True


def apply(operation: Operation, arrays: Arrays) -> list[Any]:
    """Run an operation at once, or add it to the function that JAX is tracing."""
    results: list[Any] = _operation.bind(*arrays, operation=operation)
    return results


def _run(*arrays: Any, operation: Operation) -> list[jax.Array]:
    return [jax.numpy.asarray(each) for each in operation.run(arrays, compiled=False)]


def _trace(*arrays: Any, operation: Operation) -> tuple[list[Any], set[Any]]:
    if hasattr(jax.sharding, "get_abstract_mesh"):  # without it, _lower() checks when the function is compiled
        _check_one_device(jax.sharding.get_abstract_mesh())
    shapes = [jax.core.ShapedArray(each.shape, each.dtype) for each in operation.results(arrays)]
    return shapes, {_ORDER} if operation.has_effect else set()


def _differentiate(primals: Arrays, tangents: Arrays, *, operation: Operation) -> tuple[Arrays, Arrays]:
    own, of_tangents = operation.differentiated()
    results = apply(own, primals)
    # Integer arrays have no tangents. The tangents of all other arrays go through one operation.
    places = [n for n, each in enumerate(primals) if jax.numpy.issubdtype(each.dtype, jax.numpy.inexact)]
    moved = iter(apply(of_tangents, _instantiated([tangents[number] for number in places])))
    return results, [next(moved) if n in places else _no_tangent(each) for n, each in enumerate(results)]


def _no_tangent(integers: Any) -> Any:
    return ad.Zero(jax.core.ShapedArray(integers.shape, jax.dtypes.float0))


def _instantiated(grads: Arrays) -> Arrays:
    """Replace symbolic zeros by arrays of zeros, because every rank must send an array."""
    return [ad.instantiate_zeros(grad) for grad in grads]  # type: ignore[no-untyped-call]


def _transpose(grads: Arrays, *arrays: Any, operation: Operation) -> Arrays:
    shapes = [each.aval if isinstance(each, ad.UndefinedPrimal) else each for each in arrays]
    if all(type(grad) is ad.Zero for grad in grads):
        return [ad.Zero(shape) for shape in shapes]  # on all ranks, as the function does not depend on the results
    return operation.cotangents(_instantiated(grads), shapes)


def _batch(arrays: Arrays, places: Places, *, operation: Operation) -> tuple[Arrays, Places]:
    return operation.with_batches(arrays, places)


def _lower(context: Any, *values: Any, operation: Operation) -> Any:
    _check_one_device(context.module_context.axis_context)
    if not operation.has_effect:
        return mlir.lower_fun(lambda *arrays: operation.run(arrays, compiled=True))(context, *values)

    def run(*arrays: Any) -> list[Any]:
        return [np.asarray(each) for each in operation.run(arrays, compiled=True)]

    results = [described(each.shape, each.dtype) for each in context.avals_out]

    def call(*arrays: Any) -> Any:
        return io_callback(run, results, *arrays, ordered=True)

    # The callback is ordered by the primitive's token, instead of the token that all ordered callbacks share.
    (theirs,) = jax.make_jaxpr(call)(*(described(each.shape, each.dtype) for each in context.avals_in)).effects
    inner = context.replace(tokens_in=mlir.TokenSet({theirs: context.tokens_in.get(_ORDER)}), tokens_out=None)
    lowered = mlir.lower_fun(call)(inner, *values)
    after = mlir.TokenSet({_ORDER: inner.tokens_out.get(theirs)})
    context.set_tokens_out(context.tokens_in.update_tokens(after))
    return lowered


def _check_one_device(where: Any) -> None:
    """Raise UnsupportedError if several devices of this process would each run the operation.

    ``where`` has the manually mapped axes, and the mesh that they belong to or the size of that mesh.
    """
    if not getattr(where, "manual_axes", ()):
        return
    devices = getattr(where, "mesh", where).size
    if min(devices, jax.local_device_count()) > 1:
        raise UnsupportedError(
            f"an operation of horocache is inside of shard_map or pmap, which would run it on each of {devices} "
            "devices of this rank at once; it is one operation of the whole rank. Reduce over the devices first "
            "(jax.lax.psum), and call it outside of shard_map and pmap, in the jitted function around them; or start "
            "one rank for each device."
        )


_operation.def_impl(_run)
_operation.def_effectful_abstract_eval(_trace)
ad.primitive_jvps[_operation] = _differentiate
ad.primitive_transposes[_operation] = _transpose
batching.primitive_batchers[_operation] = _batch
mlir.register_lowering(_operation, _lower)
