"""One pass over a loader, by threads, by worker processes, or in the calling thread."""
