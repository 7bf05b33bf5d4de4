"""Proof that a compiled program is correct: structural checks, an abstract interpreter, and the verifier."""
