"""Texts in files as token ids."""

from foreload.datasets.text.dataset import TextDataset

__all__ = ["TextDataset"]
