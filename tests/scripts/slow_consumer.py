"""A loop that takes 20 ms per batch, whose data come at once."""

import time

import torch
from torch.utils.data import DataLoader, TensorDataset

for _ in range(2):
    for (batch,) in DataLoader(TensorDataset(torch.zeros(640, 10)), batch_size=16):
        time.sleep(0.02)
