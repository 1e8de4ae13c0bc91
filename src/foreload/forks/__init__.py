"""Forks of this process: run, counted, and kept from changing what they share with it."""
