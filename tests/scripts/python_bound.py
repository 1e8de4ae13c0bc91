"""Pure Python in foreload's threads: only one of them runs at a time."""

import torch

import foreload


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        total = 0
        for i in range(30_000):
            total += i * index % 7
        return total


loader = foreload.DataLoader(Words(), batch_size=8, num_workers=2, workers="threads")
for _ in range(4):
    for batch in loader:
        batch.sum()
