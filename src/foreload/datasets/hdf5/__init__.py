"""Rows of HDF5 files, read by their chunks."""

from foreload.datasets.hdf5.dataset import HDF5Dataset

__all__ = ["HDF5Dataset"]
