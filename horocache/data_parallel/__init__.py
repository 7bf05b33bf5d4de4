"""Data-parallel training, once for all frameworks: options, buckets, names, and gradients of the collectives."""
