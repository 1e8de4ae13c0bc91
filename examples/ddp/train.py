"""Train on all ranks of a machine, and go on without a lost sample when one of them is killed.

export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1      (for Gloo, which would not connect after a restart)
torchrun --standalone --nproc-per-node=2 --max-restarts=3 train.py checkpoints
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import foreload as fl


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on all ranks of torchrun.")
    parser.add_argument("folder", type=Path, help="for checkpoints, and the record of what each rank trained on")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--num-workers", type=int, default=1)
    parser.add_argument("--kill-at", type=int, default=0, metavar="STEP", help="kill the last rank there, once")
    return parser.parse_args()


def make_dataset(samples: int) -> TensorDataset:
    """Make points in a plane, labelled by the side of a line that they lie on; each comes with its index."""
    points = torch.randn(samples, 2, generator=torch.Generator().manual_seed(0))
    return TensorDataset(torch.arange(samples), points, (points.sum(1) > 0).float())


def save(path: Path, checkpoint: dict[str, Any]) -> None:
    """Write a checkpoint so that whoever is killed meanwhile, the old or the new one is there, whole."""
    part = path.with_suffix(".part")
    torch.save(checkpoint, part)
    os.replace(part, path)


def train(given: argparse.Namespace) -> None:
    """Train one rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    run = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = fl.DataLoader(
        make_dataset(given.samples),
        given.batch_size,
        shuffle=True,
        seed=0,  # which splits the samples among the ranks
        num_workers=given.num_workers,
        workers="processes" if given.num_workers else "auto",
        cache="16MiB",  # one for all ranks of the machine
    )

    first_epoch, step = 0, 0
    path = given.folder / "checkpoint.pt"
    if path.exists():
        # The same state on every rank: rank 0's, which stands for all.
        checkpoint = torch.load(path)
        model.module.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])
        first_epoch, step = checkpoint["epoch"], checkpoint["step"]

    with loader, open(given.folder / f"run{run}-rank{rank}.jsonl", "w") as record:
        for epoch in range(first_epoch, given.epochs):
            loss = None  # and none comes, if the checkpoint was of the epoch's last step
            for indices, points, labels in loader:
                step += 1
                print(json.dumps([epoch, step, indices.tolist()]), file=record, flush=True)
                if run == 0 and step == given.kill_at and rank == ranks - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                loss = torch.nn.functional.binary_cross_entropy_with_logits(model(points)[:, 0], labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if rank == 0 and step % given.save_every == 0:
                    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                    save(path, {**state, "loader": loader.state_dict(), "epoch": epoch, "step": step})
            if rank == 0:
                said = "" if loss is None else f", loss {loss.item():.3f}"
                print(f"epoch {epoch}: {step} steps{said}", flush=True)


def main() -> None:
    given = arguments()
    given.folder.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")  # "nccl" on GPUs
    train(given)
    # The model, which refers to the group, is gone. If it were what ends it, Gloo's threads might wait for the
    # interpreter's lock, and the interpreter for them.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
