"""The collectives, implemented once for all frameworks: classes that are generic over a tensor adapter."""
