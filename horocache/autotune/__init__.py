"""Autotune: rank 0 searches for the fastest settings while the job trains. See docs/explanation/autotune.md."""
