"""Transformations of a call's tensors between the user and the core: an ordered list of layers.

The order is fusion, compression, logging. Tensors pass the layers in this order before they are submitted; results pass
them in the reverse order. The operation's signature names every change of the wire format (``"compression=fp16"``), so
that ranks that disagree about it get a mismatch error instead of bytes in the wrong format.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol, TypeVar

from horocache.base import tensor_log
from horocache.collectives.codecs.message import BadMessage, Values, decoded, encoded
from horocache.collectives.compression import Array, Codec, is_codec, refuse_codec
from horocache.errors import InvalidArgumentError

T = TypeVar("T")


class Compressor(Protocol):
    """Horovod's interface: a class with two static methods, or an object with two methods.

    ``wire_name`` is the name in the signature; without it, the name of the class is used. An empty ``wire_name`` means
    that tensors are sent unchanged.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, which may be ``tensor`` itself, and a context for :meth:`decompress`."""

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the values in their original element type."""


AnyCompressor = Compressor | type[Compressor] | Codec


def wire_name(compressor: AnyCompressor) -> str:
    """Return a compressor's name in the signature; empty if the compressor changes nothing."""
    name = getattr(compressor, "wire_name", None)
    if name is not None:
        return str(name)
    return compressor.__name__ if isinstance(compressor, type) else type(compressor).__name__


def check_compressor(compressor: Any) -> None:
    """Raise InvalidArgumentError unless ``compressor`` has the two methods of :class:`Compressor`.

    Raises:
        UnsupportedError: it is a codec.
    """
    refuse_codec(compressor)
    methods = (getattr(compressor, name, None) for name in ("compress", "decompress"))
    if not all(callable(method) for method in methods):
        raise InvalidArgumentError(
            f"compression must have the methods compress and decompress, as Compression.fp16 has; it is {compressor!r}."
        )


class Layer(Protocol):
    """One step between the user's tensors and the core. Stateless: ``encode`` returns all that ``decode`` needs."""

    def token(self) -> str:
        """Return the text that must be equal on all ranks, as ``name=value``; empty if the layer has none."""

    def encode(self, tensors: list[T]) -> tuple[list[T], Any]:
        """Return the tensors for the next layer, and a context for :meth:`decode`."""

    def decode(self, tensors: list[T], context: Any) -> list[T]:
        """Return the tensors for the previous layer."""


class FusionLayer:
    """Makes the tensors of one call a group, which is agreed on and fused as one entry.

    The token is empty, because the group's signature contains its members and their order anyway.
    """

    def token(self) -> str:
        """Return an empty token."""
        return ""

    def encode(self, tensors: list[T]) -> tuple[list[T], Any]:
        """Return the tensors unchanged; the core packs them when it sends them."""
        return tensors, None

    def decode(self, tensors: list[T], context: Any) -> list[T]:
        """Return the tensors unchanged."""
        return tensors


class CompressionLayer:
    """Compresses tensors before they are sent, and decompresses the results."""

    def __init__(self, compressor: AnyCompressor) -> None:
        self._compressor = compressor
        self._token = f"compression={wire_name(compressor)}"

    def token(self) -> str:
        """Return ``compression=`` and the compressor's name."""
        return self._token

    def encode(self, tensors: list[T]) -> tuple[list[T], Any]:
        """Compress each tensor."""
        pairs = [self._compressor.compress(tensor) for tensor in tensors]
        return [tensor for tensor, _ in pairs], [context for _, context in pairs]

    def decode(self, tensors: list[T], context: Any) -> list[T]:
        """Decompress each tensor."""
        return [self._compressor.decompress(tensor, ctx) for tensor, ctx in zip(tensors, context, strict=True)]


class CodecLayer:
    """Encodes the values of tensors to messages, and decodes the messages of one rank.

    Unlike those of :class:`CompressionLayer`, the encoded tensors are decoded before they are reduced, those of each
    rank by themselves.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._token = f"compression={codec.wire_name}"

    def token(self) -> str:
        """Return ``compression=``, and the codec's name and parameters."""
        return self._token

    def encode(self, tensors: list[Any]) -> tuple[list[Any], Any]:
        """Return a message, an array of uint8, for each tensor (:class:`~horocache.collectives.codecs.message.Values`).

        The context is what the other ranks' messages must agree with.
        """
        values: list[Values] = tensors
        return [encoded(self._codec, each) for each in values], [each.kind for each in values]

    def decode(self, tensors: list[Any], context: Any) -> list[Any]:
        """Return new arrays with the values of one rank's messages.

        Raises:
            BadMessage: a message is damaged, or does not fit this rank's tensor; ``member`` is its position.
        """
        messages: list[Array] = tensors
        results = []
        for message, expected in zip(messages, context, strict=True):
            try:
                results.append(decoded(self._codec, message, expected))
            except BadMessage as bad:
                bad.member = len(results)
                raise
        return results


class LoggingLayer:
    """Logs the tensors of reductions and their results, if the logger ``horocache.tensors`` is at DEBUG at ``init``.

    The token is empty, because ranks may differ in this.
    """

    def token(self) -> str:
        """Return an empty token."""
        return ""

    def encode(self, tensors: list[T]) -> tuple[list[T], Any]:
        """Log the tensors that are sent."""
        self._log("submit", tensors)
        return tensors, None

    def decode(self, tensors: list[T], context: Any) -> list[T]:
        """Log the results."""
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
        # True if no layer changes or logs tensors, so that callers may skip encode and decode.
        self.plain = all(isinstance(layer, FusionLayer) for layer in layers)

    def encode(self, tensors: list[T]) -> tuple[list[T], list[Any]]:
        """Pass the tensors through the layers; returns them and the contexts for :meth:`decode`."""
        contexts = []
        for layer in self._layers:
            tensors, context = layer.encode(tensors)
            contexts.append(context)
        contexts.reverse()
        return tensors, contexts

    def decode(self, tensors: list[T], contexts: list[Any]) -> list[T]:
        """Pass the results through the layers in reverse order."""
        for layer, context in zip(self._upwards, contexts, strict=True):
            tensors = layer.decode(tensors, context)
        return tensors


def layer_list(compressor: AnyCompressor | None, group: bool) -> LayerList:
    """Return the layers of a call: fusion for a group, compression with a compressor, logging if it is enabled."""
    key: Any = compressor
    if key.__hash__ is None:  # not hashable, for example an object of a data class
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


def codec_layers(codec: Codec, group: bool) -> LayerList:
    """Return the layers of a call whose tensors are encoded, on values and messages instead of tensors."""
    layers: list[Layer] = [FusionLayer()] if group else []
    layers.append(CodecLayer(codec))
    if tensor_log.is_enabled():
        layers.append(LoggingLayer())
    return LayerList(layers)


def sends_unchanged(compressor: AnyCompressor) -> bool:
    """True if tensors are sent as they are."""
    return not is_codec(compressor) and not layer_list(compressor, False).signature
