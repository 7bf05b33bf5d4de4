"""The codecs: ``Compression.zfp``, ``Compression.int8`` and ``Compression.topk``, and the messages that carry them.

:class:`~horocache.collectives.compression.Codec` is their base class; docs/explanation/compression.md compares them and
shows how to write one.
"""

from __future__ import annotations

from horocache.collectives.codecs.int8 import Int8
from horocache.collectives.codecs.topk import TopK
from horocache.collectives.codecs.zfp import Zfp

__all__ = ["Int8", "TopK", "Zfp"]
