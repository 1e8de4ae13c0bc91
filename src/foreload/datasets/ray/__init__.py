"""Datasets of Ray Data."""

from foreload.datasets.ray.dataset import RayDataset, from_ray_dataset

__all__ = ["RayDataset", "from_ray_dataset"]
