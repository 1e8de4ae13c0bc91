"""Tuning of workers and prefetch depth: a queueing model, predictions, trials."""
