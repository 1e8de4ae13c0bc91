"""Who makes the batches: the calling thread, or threads of a pool."""
