"""Workers on a Ray cluster: actors that make batches, which come back through Ray's object store."""
