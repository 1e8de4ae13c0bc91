"""Ranges of objects in buckets and of files on web servers."""
