"""Reading ranges of objects in buckets and on web servers."""
