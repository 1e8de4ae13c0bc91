"""Image transforms for training and validation, which run natively.

A transform here is a description. :class:`foreload.ImageDataset` and :class:`foreload.ImageArrayDataset` hand it
to the native core, which makes a whole batch in one call, and decodes only the part of an image that is needed.
Called with an image, a transform does the same to that image.
"""

from foreload.normalize.normalize import IMAGENET_MEAN, IMAGENET_STD, Normalize
from foreload.transforms.arrays import rgb_array
from foreload.transforms.images import (
    ImageTransform,
    get_train_transforms,
    get_val_transforms,
    resize,
    shaped,
    train,
    transform_array,
    val,
)
from foreload.transforms.small import SmallImageTransform, train_small, val_small

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "ImageTransform",
    "Normalize",
    "SmallImageTransform",
    "get_train_transforms",
    "get_val_transforms",
    "resize",
    "rgb_array",
    "shaped",
    "train",
    "train_small",
    "transform_array",
    "val",
    "val_small",
]
