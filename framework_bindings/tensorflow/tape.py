"""Gradient tapes whose gradients are those of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from horocache.tensorflow.autograph import as_it_is
from horocache.tensorflow.compression import Compression
from horocache.tensorflow.reduction import check_lists_of_variables, reduce_gradients, variable_key

import tensorflow as tf
from horocache.collectives.api import Average
from horocache.collectives.transforms import AnyCompressor
from horocache.core.process_set import ProcessSet, global_process_set
from horocache.data_parallel.options import GradientOptions, gradient_options, variables_of_layers


class LocalSources:
    """The variables whose gradients stay on this rank."""

    def __init__(self, scale: bool) -> None:
        self._keys: set[Any] = set()
        self._scale = scale

    def add(self, variable: Any) -> None:
        """Take another one."""
        self._keys.add(variable_key(variable))

    def __contains__(self, variable: Any) -> bool:
        return bool(self._keys) and variable_key(variable) in self._keys

    def scaled(self, gradient: Any, ranks: int) -> Any:
        """A local gradient, with the weight that it would have in an average."""
        if gradient is None or not self._scale:
            return gradient
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / ranks, gradient.indices, gradient.dense_shape)
        return gradient / ranks


def reduce_but_local(
    gradients: Sequence[Any], variables: Sequence[Any], local: LocalSources, options: GradientOptions, prefix: str
) -> list[Any]:
    """The gradients: local ones scaled, all others reduced."""
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
    """What :func:`DistributedGradientTape` adds to a tape."""

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
        """What ``tf.GradientTape.gradient`` returns, reduced over the ranks.

        Args:
            target: what to differentiate.
            sources: the variables, or a structure of them.
            output_gradients: as for ``tf.GradientTape``.
            use_generic_names: accepted because Horovod has it; names do not depend on those of the variables anyway.
            unconnected_gradients: as for ``tf.GradientTape``.
        """
        computed = super().gradient(target, sources, output_gradients, unconnected_gradients)
        flat, variables = tf.nest.flatten(computed), tf.nest.flatten(sources)
        reduced = reduce_but_local(flat, variables, self._local, self._options, "gradient")
        return tf.nest.pack_sequence_as(sources, reduced)

    def register_local_source(self, source: Any) -> None:
        """Leave the gradient of a variable on this rank."""
        self._local.add(source)

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """What :meth:`gradient` returns for a flat list, as pairs of a source and its gradient.

        Args:
            target: as for :meth:`gradient`.
            sources: a list of variables or tensors.
            output_gradients: as for :meth:`gradient`.
            use_generic_names: as for :meth:`gradient`.

        Returns:
            The pairs of local sources, and those of the others, each in the order of ``sources``.
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
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> DistributedTape:
    """Wrap a tape so that ``gradient()`` returns gradients that are reduced over all ranks.

    Args:
        gradtape: recorded already, or still to be entered. It shares all it records with the result.
        device_dense: accepted because Horovod has it; TensorFlow puts results where they are used.
        device_sparse: the same.
        compression: of ``Compression``, or one's own compressor.
        sparse_as_dense: make ``tf.IndexedSlices`` dense before they are reduced, instead of gathering them.
        op: Average, Sum, Min, Max, Product or Adasum.
        gradient_predivide_factor: with Average, divides before the sum by this factor and after it by the rest of the
            number of ranks.
        num_groups: how many groups the gradients are reduced in, each as one operation; 0 reduces each by itself.
        groups: a number, as ``num_groups``, or lists of variables that are reduced together.
        process_set: the ranks that take part.
        scale_local_gradients: divide gradients of local sources by the number of ranks.

    Raises:
        ValueError: see :func:`horocache.torch.DistributedOptimizer`.
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
    # What is the wrapper's own is its class's: one tape has several faces.
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
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> DistributedTape:
    """:func:`DistributedGradientTape` that leaves the gradients of ``local_layers`` on their ranks.

    Args:
        gradtape: as there, and so are the arguments that are not listed.
        device_dense: as there.
        device_sparse: as there.
        compression: as there.
        sparse_as_dense: as there.
        op: as there.
        gradient_predivide_factor: as there.
        num_groups: as there.
        groups: as there.
        process_set: as there.
        local_layers: a Keras layer, or several, whose variables have been made.
        scale_local_gradients: as there.
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
