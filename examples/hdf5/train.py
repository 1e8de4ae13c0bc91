"""Fit a line to rows of a compressed HDF5 file, shuffled, with each chunk decoded once.

python train.py rows.h5
"""

from __future__ import annotations

import argparse
from pathlib import Path

import h5py
import numpy as np
import torch

import foreload as fl


def make_rows(path: Path, rows: int, seed: int = 0) -> None:
    """Write rows of 32 numbers and their targets, a linear function of them and some noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 32)).astype(np.float32)
    y = x @ np.linspace(-1, 1, 32, dtype=np.float32) + rng.normal(0, 0.1, rows).astype(np.float32)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=x, chunks=(256, 32), compression="gzip")
        file.create_dataset("y", data=y)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit a line to rows of an HDF5 file.")
    parser.add_argument("file", type=Path, help="made if it is not there")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    if not given.file.exists():
        make_rows(given.file, given.rows)

    rows = fl.HDF5Dataset(given.file, "x", target_name="y")
    loader = fl.DataLoader(rows, batch_size=200, shuffle=True, seed=0)
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for epoch in range(given.epochs):
        errors = []
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x)[:, 0], y.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            errors.append(loss.item())
        print(f"epoch {epoch}: mean squared error {np.mean(errors):.4f}")
    print(loader.report())


if __name__ == "__main__":
    main()
