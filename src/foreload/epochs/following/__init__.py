"""Speculative loading by worker processes, with the same results as loading in the calling thread."""
