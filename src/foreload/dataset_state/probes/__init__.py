"""Probes of one value each: whether it is what it was before."""
