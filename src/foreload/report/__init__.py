"""Verdicts on what slows a training loop down, with advice."""
