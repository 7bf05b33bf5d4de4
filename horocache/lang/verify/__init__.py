"""Proof that a compiled program is right: validation, an abstract interpreter, the verifier."""
