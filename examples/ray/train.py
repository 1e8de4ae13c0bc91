"""Train on a Ray cluster: each trainer's batches are made by CPUs anywhere in the cluster."""

from __future__ import annotations

import argparse
from typing import Any

import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch.utils.data import TensorDataset

import foreload as fl


def train(config: dict[str, Any]) -> None:
    """Train on one rank; the loader knows its share from ``torch.distributed``, which Ray Train has set up."""
    x = torch.randn(config["samples"], 16, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(x, x.sum(1, keepdim=True))
    loader: Any = fl.DataLoader(
        dataset,
        batch_size=32,
        shuffle=True,
        seed=0,
        workers="ray",
        num_workers=config["loaders"],
        persistent_workers=True,
    )
    model = prepare_model(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with loader:
        for epoch in range(config["epochs"]):
            for inputs, targets in loader:
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            ray.train.report({"epoch": epoch, "loss": loss.item()})
            if ray.train.get_context().get_world_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.3g}; {loader.stats()['samples']} samples")


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--loaders", type=int, default=1, help="Ray workers of each trainer's loader")
    parser.add_argument("--gpu", action="store_true", help="one GPU for each trainer")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--storage", default=None, help="the folder for results that all nodes see")
    given = parser.parse_args()
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": given.epochs, "samples": given.samples, "loaders": given.loaders},
        # Trainers wait for batches most of the time that they are on a CPU: leave whole ones to the loaders.
        scaling_config=ScalingConfig(
            num_workers=given.trainers, use_gpu=given.gpu, resources_per_worker={"CPU": 0.1, "GPU": int(given.gpu)}
        ),
        run_config=RunConfig(storage_path=given.storage),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
