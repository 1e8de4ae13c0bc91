"""Comparisons of foreload with stock torch, on the user's own machine and data."""
