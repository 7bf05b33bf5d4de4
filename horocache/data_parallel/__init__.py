"""What data-parallel training needs, once for all frameworks: options, buckets, gradients of the collectives."""
