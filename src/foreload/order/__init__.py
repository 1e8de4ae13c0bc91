"""The order of an epoch: which samples, in which batches, known ahead."""

from foreload.order.mixture import MixtureSampler
from foreload.order.samplers import KeyedSampler

__all__ = ["KeyedSampler", "MixtureSampler"]
