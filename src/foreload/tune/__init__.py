"""How many workers and batches ahead are best: a model, predictions, trials."""
