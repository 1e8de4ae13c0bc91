"""Batches copied to a device from memory that is not page-locked: 10 ms each. The device is simulated."""

import time

import torch
from torch.utils.data import DataLoader, TensorDataset

to = torch.Tensor.to


def slow_to(self, *args, **options):
    time.sleep(0.01)
    return to(self, "meta")


torch.Tensor.to = slow_to
torch.accelerator.is_available = lambda: True

for _ in range(2):
    for (batch,) in DataLoader(TensorDataset(torch.zeros(640, 10)), batch_size=16):
        moved = batch.to("cuda", non_blocking=True)
