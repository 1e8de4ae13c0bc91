"""Lines and texts, found by their places in files."""

from foreload.datasets.text.dataset import TextDataset

__all__ = ["TextDataset"]
