"""Datasets: where samples come from and what they are."""
