"""Samples in MosaicML's MDS shards."""

from foreload.datasets.mds.dataset import MDSDataset

__all__ = ["MDSDataset"]
