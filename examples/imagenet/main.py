"""PyTorch's ImageNet example (pytorch/examples, imagenet/main.py) with foreload: what differs is marked FORELOAD.

python main.py imagenet --arch resnet18
torchrun --standalone --nproc-per-node=8 main.py imagenet --arch resnet50 --batch-size 256
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import foreload as fl


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="PyTorch ImageNet training")
    parser.add_argument("data", type=Path, help="a folder with train and val, each with class folders")
    parser.add_argument("-a", "--arch", default="resnet18", help="of torchvision.models, or 'small'")
    parser.add_argument("-j", "--workers", default="auto", help="a number, or 'auto'")
    parser.add_argument("--epochs", default=90, type=int)
    parser.add_argument("-b", "--batch-size", default=256, type=int, help="of each process")
    parser.add_argument("--lr", "--learning-rate", default=0.1, type=float)
    parser.add_argument("--momentum", default=0.9, type=float)
    parser.add_argument("--wd", "--weight-decay", default=1e-4, type=float)
    parser.add_argument("-p", "--print-freq", default=10, type=int)
    parser.add_argument("--resume", type=Path, help="a checkpoint")
    parser.add_argument("-e", "--evaluate", action="store_true")
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--cache", help="memory for images, such as 16GiB")  # FORELOAD
    parser.add_argument("--size", default=224, type=int)
    parser.add_argument("--out", type=Path, default=Path("checkpoint.pth.tar"))
    return parser.parse_args()


def make_model(arch: str, classes: int) -> nn.Module:
    if arch == "small":  # to try the script without torchvision and without a GPU
        return nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, classes))
    from torchvision import models

    return models.get_model(arch, num_classes=classes)


def make_loaders(given: argparse.Namespace, device: torch.device) -> tuple[Any, Any]:
    # FORELOAD: ImageFolder, Compose([RandomResizedCrop, RandomHorizontalFlip, ToTensor, Normalize]) and
    # DistributedSampler were here. Pixels go to the GPU as bytes, and are normalised there.
    common = {
        "batch_size": given.batch_size,
        "num_workers": given.workers if given.workers == "auto" else int(given.workers),
        "seed": given.seed,  # each rank gets its part of the order; there is no sampler and no set_epoch
        "device": device,
        "device_transform": fl.transforms.Normalize(),
    }
    train = fl.ImageDataset(
        given.data / "train", transform=fl.transforms.train(given.size, normalize=False), cache_size=0
    )
    val = fl.ImageDataset(given.data / "val", transform=fl.transforms.val(given.size, normalize=False))
    return fl.DataLoader(train, shuffle=True, cache=given.cache, **common), fl.DataLoader(val, **common)


def main() -> None:
    given = arguments()
    distributed = "RANK" in os.environ  # under torchrun
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if distributed:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    is_first = not distributed or dist.get_rank() == 0

    torch.manual_seed(given.seed)
    train, val = make_loaders(given, device)
    model = make_model(given.arch, len(train.dataset.classes)).to(device)
    trained: nn.Module = nn.parallel.DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.SGD(model.parameters(), given.lr, momentum=given.momentum, weight_decay=given.wd)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    first_epoch, best = 0, 0.0
    if given.resume is not None:
        found = torch.load(given.resume, map_location=device)
        model.load_state_dict(found["state_dict"])
        optimizer.load_state_dict(found["optimizer"])
        scheduler.load_state_dict(found["scheduler"])
        train.load_state_dict(found["loader"])  # FORELOAD: which may be in the middle of an epoch
        first_epoch, best = found["epoch"], found["best"]
    if given.evaluate:
        validate(val, model, device, given.print_freq)
        return

    for epoch in range(first_epoch, given.epochs):
        train_epoch(train, trained, optimizer, epoch, given.print_freq if is_first else 0)
        scheduler.step()
        accuracy = validate(val, model, device, is_first)
        best = max(best, accuracy)
        if is_first:
            states = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
            states |= {"scheduler": scheduler.state_dict(), "loader": train.state_dict()}
            torch.save({**states, "epoch": epoch + 1, "best": best}, given.out)
    if is_first:
        print(f"best accuracy {best:.1f}")
        print(train.report())  # FORELOAD: what held the loop back, if anything
    if distributed:
        dist.destroy_process_group()


def train_epoch(loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, every: int) -> None:
    model.train()
    began, waited, asked = time.perf_counter(), 0.0, time.perf_counter()
    for step, (images, target) in enumerate(loader):  # on the device
        waited += time.perf_counter() - asked
        loss = nn.functional.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if every and step % every == 0:
            seconds = time.perf_counter() - began
            print(f"Epoch [{epoch}][{step}/{len(loader)}] time {seconds:.2f} data {waited:.2f} loss {loss:.4f}")
        asked = time.perf_counter()


@torch.inference_mode()
def validate(loader: Any, model: nn.Module, device: torch.device, show: int) -> float:
    """Return the top-1 accuracy, in percent, over all ranks."""
    model.eval()
    counts = torch.zeros(3, device=device)
    for images, target in loader:
        ranked = model(images).topk(min(5, len(loader.dataset.classes)), 1).indices
        right = ranked == target[:, None]
        counts += torch.stack([right[:, 0].sum(), right.sum(), torch.tensor(len(target), device=device)])
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(counts)
    first, five = (100 * counts[:2] / counts[2]).tolist()
    if show:
        print(f" * Acc@1 {first:.3f} Acc@5 {five:.3f}")
    return first


if __name__ == "__main__":
    main()
