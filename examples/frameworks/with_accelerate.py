"""Train with Accelerate, on one process or many: `prepare` keeps the loader a foreload loader.

accelerate launch with_accelerate.py        (or: python with_accelerate.py)
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import TensorDataset

import foreload as fl


def main() -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    points = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(points, (points.sum(1) > 0).float())
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = fl.DataLoader(dataset, batch_size=20, shuffle=True, seed=0)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(2):
        for x, y in loader:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}")
    accelerator.print(f"{loader.stats()['samples']} samples on this process")
    accelerator.print(loader.report())


if __name__ == "__main__":
    main()
