"""Proof that a compiled program is right: validation, an abstract interpreter, the verifier."""

from horocache.lang.verify.verifier import verify

__all__ = ["verify"]
