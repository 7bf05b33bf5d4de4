"""The collectives, once for all frameworks: one class each, generic over a tensor adapter."""
