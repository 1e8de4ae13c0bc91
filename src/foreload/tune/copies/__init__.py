"""Copies of a dataset in other processes: what they have for themselves, and what they would share with it."""
