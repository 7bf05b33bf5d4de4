"""What happens to a call's tensors between the user and the wire: an ordered list of layers.

The order is fusion, compression, logging. Tensors pass it downwards before they are submitted and upwards when the
result is there. What the list does to the wire format is text in the operation's signature (``"compression=fp16"``), so
ranks that disagree about it get a mismatch error instead of each other's bytes in the wrong format.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol, TypeVar

from horocache.base import tensor_log
from horocache.errors import InvalidArgumentError

T = TypeVar("T")


class Compressor(Protocol):
    """Horovod's interface: a class with two static methods, or an object with two methods.

    ``wire_name`` enters the signature; what has none is known by the name of its class. An empty ``wire_name`` means
    that the tensors travel as they are.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """What to send, and a context for :meth:`decompress`; the tensor itself if there is nothing to gain."""

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The values in the original element type."""


AnyCompressor = Compressor | type[Compressor]


def wire_name(compressor: AnyCompressor) -> str:
    """How the signature calls a compressor; empty for one that changes nothing."""
    name = getattr(compressor, "wire_name", None)
    if name is not None:
        return str(name)
    return compressor.__name__ if isinstance(compressor, type) else type(compressor).__name__


def check_compressor(compressor: Any) -> None:
    """InvalidArgumentError unless it has :class:`Compressor`'s two methods."""
    methods = (getattr(compressor, name, None) for name in ("compress", "decompress"))
    if not all(callable(method) for method in methods):
        raise InvalidArgumentError(
            f"compression must have the methods compress and decompress, as Compression.fp16 has; it is {compressor!r}."
        )


class Layer(Protocol):
    """One step between the user's tensors and the wire. Stateless: what ``decode`` needs, ``encode`` returns."""

    def token(self) -> str:
        """What must be equal on all ranks, as ``name=value``; empty if there is nothing."""

    def encode(self, tensors: list[T]) -> tuple[list[T], Any]:
        """The tensors to pass down, and a context for :meth:`decode`."""

    def decode(self, tensors: list[T], context: Any) -> list[T]:
        """The tensors to pass up."""


class FusionLayer:
    """Makes the tensors of one call a group: agreed on, and fused, as one entry.

    Membership and order are in the group's signature anyway, so there is no token.
    """

    def token(self) -> str:
        """Nothing to add."""
        return ""

    def encode(self, tensors: list[T]) -> tuple[list[T], Any]:
        """Leave the tensors alone: the core packs them while it sends."""
        return tensors, None

    def decode(self, tensors: list[T], context: Any) -> list[T]:
        """Leave the tensors alone."""
        return tensors


class CompressionLayer:
    """Sends tensors in another element type."""

    def __init__(self, compressor: AnyCompressor) -> None:
        self._compressor = compressor
        self._token = f"compression={wire_name(compressor)}"

    def token(self) -> str:
        """``compression=`` and the compressor's name."""
        return self._token

    def encode(self, tensors: list[T]) -> tuple[list[T], Any]:
        """Compress each tensor."""
        pairs = [self._compressor.compress(tensor) for tensor in tensors]
        return [tensor for tensor, _ in pairs], [context for _, context in pairs]

    def decode(self, tensors: list[T], context: Any) -> list[T]:
        """Decompress each tensor."""
        return [self._compressor.decompress(tensor, ctx) for tensor, ctx in zip(tensors, context, strict=True)]


class LoggingLayer:
    """Logs the tensors of reductions, down and up, if the logger ``horocache.tensors`` is at DEBUG at ``init``.

    Ranks may differ in it, so it has no token.
    """

    def token(self) -> str:
        """Nothing that must be equal."""
        return ""

    def encode(self, tensors: list[T]) -> tuple[list[T], Any]:
        """Log what is sent."""
        self._log("submit", tensors)
        return tensors, None

    def decode(self, tensors: list[T], context: Any) -> list[T]:
        """Log what came back."""
        self._log("finish", tensors)
        return tensors

    def _log(self, what: str, tensors: list[Any]) -> None:
        tensor_log.logger.debug("%s %s", what, ", ".join(f"{t.dtype}{list(t.shape)}" for t in tensors))


class LayerList:
    """The layers of one call, outermost first.

    Role: immutable, shared by all calls with the same options.
    """

    def __init__(self, layers: list[Layer]) -> None:
        self._layers = tuple(layers)
        self._upwards = tuple(reversed(self._layers))
        self.signature = ",".join(token for token in (layer.token() for layer in layers) if token)
        self.group = any(isinstance(layer, FusionLayer) for layer in layers)
        # Nothing happens to the tensors on their way: callers may leave encode and decode out.
        self.plain = all(isinstance(layer, FusionLayer) for layer in layers)

    def encode(self, tensors: list[T]) -> tuple[list[T], list[Any]]:
        """Pass the tensors down; also what :meth:`decode` needs."""
        contexts = []
        for layer in self._layers:
            tensors, context = layer.encode(tensors)
            contexts.append(context)
        contexts.reverse()
        return tensors, contexts

    def decode(self, tensors: list[T], contexts: list[Any]) -> list[T]:
        """Pass the results up."""
        for layer, context in zip(self._upwards, contexts, strict=True):
            tensors = layer.decode(tensors, context)
        return tensors


def layer_list(compressor: AnyCompressor | None, group: bool) -> LayerList:
    """The list for a call: fusion if its tensors are a group, compression if there is any, logging if wanted."""
    key: Any = compressor
    if key.__hash__ is None:  # an object of a data class, for example
        return _layer_list(key, group, tensor_log.is_enabled())
    return _known_layer_list(key, group, tensor_log.is_enabled())


def _layer_list(compressor: Any, group: bool, log: bool) -> LayerList:
    layers: list[Layer] = []
    if group:
        layers.append(FusionLayer())
    if compressor is not None:
        check_compressor(compressor)
        if wire_name(compressor):
            layers.append(CompressionLayer(compressor))
    if log:
        layers.append(LoggingLayer())
    return LayerList(layers)


_known_layer_list = functools.lru_cache(maxsize=256)(_layer_list)
