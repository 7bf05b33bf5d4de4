"""``msccl.collectives``: empty, so that imports work. In msccl-tools, this module belongs to its synthesizer."""

__all__: list[str] = []
