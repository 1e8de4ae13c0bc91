"""Stop a run with Ctrl-C, start it again, and train on exactly the samples that were left.

python train.py out      (press Ctrl-C, and run it again)
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import foreload as fl


def save(path: Path, checkpoint: dict[str, object]) -> None:
    """Put a checkpoint in place as a whole: whatever is killed meanwhile, the old or the new one is there."""
    part = path.with_suffix(".part")
    torch.save(checkpoint, part)
    os.replace(part, path)


def main() -> None:
    parser = argparse.ArgumentParser(description="A run that can be interrupted.")
    parser.add_argument("folder", type=Path, help="for the checkpoint, and the list of samples trained on")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--step-ms", type=float, default=20, help="so that there is time to press Ctrl-C")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    path = given.folder / "checkpoint.pt"

    torch.manual_seed(0)
    points = torch.randn(given.samples, 2)
    dataset = TensorDataset(torch.arange(given.samples), points, (points.sum(1) > 0).float())
    loader = fl.DataLoader(dataset, batch_size=20, shuffle=True, seed=0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    first = 0
    if path.exists():
        found = torch.load(path)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        loader.load_state_dict(found["loader"])
        first = found["epoch"]
        print(f"going on in epoch {first}", flush=True)

    # Ctrl-C lets the step end first, so that model and loader are saved at the same place.
    interrupted = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())

    with (given.folder / "trained.jsonl").open("a") as record:
        for epoch in range(first, given.epochs):
            loss = None  # and none comes, if it was interrupted in the epoch's last step
            for step, (indices, x, y) in enumerate(loader):
                loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(json.dumps([epoch, indices.tolist()]), file=record, flush=True)
                time.sleep(given.step_ms / 1000)
                if interrupted.is_set() or step % 50 == 0:  # now and then, against a kill without a warning
                    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    save(path, {**states, "loader": loader.state_dict(), "epoch": epoch})
                if interrupted.is_set():
                    print("interrupted; run it again to go on", flush=True)
                    return
            if loss is not None:
                print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    path.unlink(missing_ok=True)  # done: the next run begins anew


if __name__ == "__main__":
    main()
