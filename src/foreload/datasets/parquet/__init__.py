"""Rows of Parquet files, read by their row groups."""

from foreload.datasets.parquet.dataset import ParquetDataset

__all__ = ["ParquetDataset"]
