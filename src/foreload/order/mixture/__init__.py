"""Samples from several datasets in exact proportions."""

from foreload.order.mixture.sampler import MixtureSampler

__all__ = ["MixtureSampler"]
