"""Helpers that every other package may import: untrusted text, paths, processors, operation codes, thread names."""
