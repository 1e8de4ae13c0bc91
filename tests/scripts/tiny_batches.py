"""Samples that cost nothing, two at a time through worker processes."""

import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    loader = DataLoader(TensorDataset(torch.arange(3000.0)), batch_size=2, num_workers=2, persistent_workers=True)
    for _ in range(2):
        for (batch,) in loader:
            batch.sum()
