"""A wrapper of any dataset whose threads load the next samples ahead."""

from foreload.datasets.prefetch.dataset import AsyncPrefetchDataset

__all__ = ["AsyncPrefetchDataset"]
