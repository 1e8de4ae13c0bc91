"""Files on a slow disk: every read takes 4 ms, by a layer between Python and the file."""

import io
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


class SlowFile(io.FileIO):
    def readinto(self, buffer):
        time.sleep(0.004)
        return super().readinto(buffer)


class Files(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).iterdir())

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        data = io.BufferedReader(SlowFile(self.paths[index])).read(4096)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)


if __name__ == "__main__":
    workers = int(sys.argv[2])
    files = Files(sys.argv[1])
    loader = DataLoader(files, batch_size=8, num_workers=workers, persistent_workers=workers > 0)
    for _ in range(3):
        for batch in loader:
            batch.sum()
