"""``msccl.collectives``: those of msccl-tools' synthesizer, which is no part of this; programs only import them."""

__all__: list[str] = []
