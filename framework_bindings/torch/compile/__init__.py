"""The collectives as torch's compiler sees them."""
