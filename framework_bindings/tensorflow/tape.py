"""Gradient tapes that reduce their gradients over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import tensorflow as tf
from horocache.collectives.api import Average
from horocache.collectives.transforms import AnyCompressor
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.data_parallel.bucketing import NumGroups
from horocache.data_parallel.options import GradientOptions, gradient_options, variables_of_layers

from .autograph import as_it_is
from .compression import Compression
from .reduction import check_lists_of_variables, reduce_gradients, variable_key


class LocalSources:
    """The variables whose gradients stay on this rank."""

    def __init__(self, scale: bool) -> None:
        self._keys: set[Any] = set()
        self._scale = scale

    def add(self, variable: Any) -> None:
        """Add a variable."""
        self._keys.add(variable_key(variable))

    def __contains__(self, variable: Any) -> bool:
        return bool(self._keys) and variable_key(variable) in self._keys

    def scaled(self, gradient: Any, ranks: int) -> Any:
        """Return a local gradient, divided by the number of ranks (its weight in an average) if scaling is on."""
        if gradient is None or not self._scale:
            return gradient
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / ranks, gradient.indices, gradient.dense_shape)
        return gradient / ranks


def reduce_but_local(
    gradients: Sequence[Any], variables: Sequence[Any], local: LocalSources, options: GradientOptions, prefix: str
) -> list[Any]:
    """Return the gradients: those of local variables scaled, all others reduced over the ranks."""
    ranks = options.process_set.size()
    result = list(gradients)
    shared = [index for index, variable in enumerate(variables) if variable not in local]
    for index in set(range(len(result))).difference(shared):
        result[index] = local.scaled(result[index], ranks)
    reduced = reduce_gradients([gradients[i] for i in shared], [variables[i] for i in shared], options, prefix)
    for index, each in zip(shared, reduced, strict=True):
        result[index] = each
    return result


class DistributedTape(tf.GradientTape):
    """The methods that :func:`DistributedGradientTape` adds to a tape.

    Role: the first base of a class that also derives from the class of the user's tape and holds the options.
    """

    _options: GradientOptions
    _local: LocalSources

    @as_it_is
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        *,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Compute gradients as ``tf.GradientTape.gradient`` does, and reduce them over the ranks.

        Gradients of local sources are not reduced.

        Args:
            target: the tensor, or structure of tensors, to differentiate.
            sources: the variable or tensor, or structure of them, to differentiate with respect to.
            output_gradients: the gradients of ``target``, which multiply its derivatives; None stands for ones.
            use_generic_names: accepted because Horovod has it, and ignored: operation names never contain the numbers
                in variables' names, which may differ between ranks.
            unconnected_gradients: the gradient of a source that ``target`` does not depend on: None or zeros.

        Returns:
            The gradients, in the structure of ``sources``; None stays None.
        """
        computed = super().gradient(target, sources, output_gradients, unconnected_gradients)
        flat, variables = tf.nest.flatten(computed), tf.nest.flatten(sources)
        reduced = reduce_but_local(flat, variables, self._local, self._options, "gradient")
        return tf.nest.pack_sequence_as(sources, reduced)

    def register_local_source(self, source: Any) -> None:
        """Keep the gradient of a variable on this rank, instead of reducing it."""
        self._local.add(source)

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Compute and reduce gradients as :meth:`gradient` does, and separate those of local sources from the others.

        Args:
            target: the tensor, or structure of tensors, to differentiate.
            sources: a list of variables or tensors to differentiate with respect to.
            output_gradients: the gradients of ``target``, which multiply its derivatives; None stands for ones.
            use_generic_names: accepted because Horovod has it, and ignored.

        Returns:
            Two lists of pairs of a source and its gradient: of the local sources, and of all others. Both are in the
            order of ``sources``.
        """
        gradients = self.gradient(target, list(sources), output_gradients, use_generic_names)
        local: list[tuple[Any, Any]] = []
        shared: list[tuple[Any, Any]] = []
        for source, gradient in zip(sources, gradients, strict=True):
            (local if source in self._local else shared).append((source, gradient))
        return local, shared


@as_it_is
def DistributedGradientTape(  # noqa: N802  (Horovod's name)
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: NumGroups = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> DistributedTape:
    """Wrap a tape so that ``gradient()`` returns gradients that are reduced over all ranks.

    Args:
        gradtape: a tape that has recorded already or is still to be entered. It and the result share everything that
            either of them records.
        device_dense: accepted because Horovod has it, and ignored: TensorFlow puts results where they are used.
        device_sparse: accepted because Horovod has it, and ignored.
        compression: a class of ``Compression``, or a custom compressor; the same on all ranks.
        sparse_as_dense: True makes ``tf.IndexedSlices`` dense before they are reduced; False gathers them.
        op: Average, Sum, Min, Max, Product or Adasum.
        gradient_predivide_factor: with Average, the gradients are divided by this factor before the sum, and by the
            number of ranks over this factor after it.
        num_groups: the number of groups into which the gradients are split; each group is reduced as one operation. 0
            reduces every gradient by an operation of its own. "auto": one group for each 25 MiB, at most 10.
        groups: a number, with the meaning of ``num_groups``; or lists of variables, each list reduced as one operation.
            The gradients of all other variables are reduced by operations of their own.
        process_set: the ranks that take part.
        scale_local_gradients: True divides the gradients of local sources by the number of ranks.

    Returns:
        A tape of a class that derives from the class of ``gradtape``.

    Raises:
        ValueError: ``op``, ``compression``, ``num_groups``, ``groups`` or the process set is invalid;
            ``gradient_predivide_factor`` is not positive, or is not 1 with another ``op`` than Average.
        NotInitializedError: called before ``init()``.
    """
    options = gradient_options(
        compression=compression,
        backward_passes_per_step=1,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        check_members=check_lists_of_variables,
    )
    plain_class = type(gradtape)
    # The options are attributes of a new class, because the wrapper and the user's tape share their __dict__.
    own = {"_options": options, "_local": LocalSources(scale_local_gradients)}
    made: Any = type(plain_class.__name__, (DistributedTape, plain_class), own)
    tape = cast(DistributedTape, made.__new__(made))
    tape.__dict__ = gradtape.__dict__
    return tape


@as_it_is
def PartialDistributedGradientTape(  # noqa: N802  (Horovod's name)
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: NumGroups = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> DistributedTape:
    """Wrap a tape as :func:`DistributedGradientTape` does, but keep the gradients of ``local_layers`` on their ranks.

    Args:
        gradtape: a tape that has recorded already or is still to be entered. It and the result share everything that
            either of them records.
        device_dense: accepted because Horovod has it, and ignored: TensorFlow puts results where they are used.
        device_sparse: accepted because Horovod has it, and ignored.
        compression: a class of ``Compression``, or a custom compressor; the same on all ranks.
        sparse_as_dense: True makes ``tf.IndexedSlices`` dense before they are reduced; False gathers them.
        op: Average, Sum, Min, Max, Product or Adasum.
        gradient_predivide_factor: with Average, the gradients are divided by this factor before the sum, and by the
            number of ranks over this factor after it.
        num_groups: the number of groups into which the gradients are split; each group is reduced as one operation. 0
            reduces every gradient by an operation of its own. "auto": one group for each 25 MiB, at most 10.
        groups: a number, with the meaning of ``num_groups``; or lists of variables, each list reduced as one operation.
            The gradients of all other variables are reduced by operations of their own.
        process_set: the ranks that take part.
        local_layers: a built Keras layer, or several, whose gradients stay on their ranks.
        scale_local_gradients: True divides the gradients of the local layers by the number of ranks.

    Returns:
        A tape of a class that derives from the class of ``gradtape``.

    Raises:
        ValueError: ``local_layers`` are not Keras layers; or one of the cases of :func:`DistributedGradientTape`.
        NotInitializedError: called before ``init()``.
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for variable in variables_of_layers(local_layers):
        tape.register_local_source(variable)
    return tape
