"""``horovod.tensorflow.compression``: compressors."""

from horocache.tensorflow.compression import Compression, FP16Compressor

from horocache.collectives.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
