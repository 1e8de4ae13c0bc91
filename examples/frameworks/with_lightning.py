"""Train with Lightning; its checkpoints, in the middle of an epoch too, hold the loader's state.

python with_lightning.py out
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightning
import torch
from torch.utils.data import TensorDataset

import foreload as fl


class Line(lightning.LightningModule):
    """A linear model, which prints the samples of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(2, 1)
        self.seen: list[int] = []

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        indices, x, y = batch
        self.seen += indices.tolist()
        return torch.nn.functional.binary_cross_entropy_with_logits(self.model(x)[:, 0], y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def make_loader() -> fl.DataLoader[tuple[torch.Tensor, ...]]:
    points = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(torch.arange(400), points, (points.sum(1) > 0).float())
    return fl.DataLoader(dataset, batch_size=20, shuffle=True, seed=0)


def make_trainer(folder: Path, steps: int) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        max_steps=steps, accelerator="cpu", default_root_dir=folder, enable_checkpointing=False, **quiet
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with Lightning, and go on from a checkpoint.")
    parser.add_argument("folder", type=Path, help="for the checkpoint")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)

    first, trainer = Line(), make_trainer(given.folder, steps=7)
    trainer.fit(first, make_loader())
    checkpoint = given.folder / "step7.ckpt"
    trainer.save_checkpoint(checkpoint)

    second, loader = Line(), make_loader()
    make_trainer(given.folder, steps=20).fit(second, loader, ckpt_path=checkpoint, weights_only=False)
    together = sorted(first.seen + second.seen)
    print(f"{len(first.seen)} samples, then {len(second.seen)}: each once: {together == list(range(400))}")
    print(loader.report())


if __name__ == "__main__":
    main()
