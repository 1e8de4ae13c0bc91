"""Token sequences packed into rows of one length, with the documents kept apart."""

from foreload.datasets.packing.dataset import PackedDataset
from foreload.datasets.packing.masks import attention_mask, cu_seqlens
from foreload.datasets.packing.pack import pack_sequences

__all__ = ["PackedDataset", "attention_mask", "cu_seqlens", "pack_sequences"]
