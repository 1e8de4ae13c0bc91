"""Batches on a GPU: copied, and worked on there, ahead of the loop."""
