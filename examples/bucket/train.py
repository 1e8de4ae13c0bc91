"""Train on shards in a bucket; from the second epoch on they come from a local disk.

foreload pack photos packed && aws s3 cp --recursive packed s3://bucket/packed
python train.py s3://bucket/packed/ --spill /scratch/photos
"""

from __future__ import annotations

import argparse

import torch

import foreload as fl


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on shards in a bucket.")
    parser.add_argument("url", help="of the shards: s3://bucket/folder/, or s3://bucket/train-{000..099}.tar")
    parser.add_argument("--spill", help="a folder on a local disk, for what was fetched")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the storage")
    given = parser.parse_args()
    options = dict(option.split("=", 1) for option in given.option)  # credentials, endpoint, region, ...

    images = fl.ImageDataset(given.url, transform=fl.transforms.train(given.size), storage=options)
    loader = fl.DataLoader(
        images, batch_size=32, shuffle=True, seed=0, cache=fl.Cache("16MiB", spill=given.spill), on_error="skip"
    )
    model = torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(192, len(images.classes) or 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(given.epochs):
        before = loader.stats()
        for pictures, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        now = loader.stats()
        print(f"epoch {epoch}: {now['samples'] - before['samples']} images, loss {loss.item():.3f}")
    print(f"hit rate {now['cache']['hit_rate']:.2f}, {len(loader.errors)} images left out")


if __name__ == "__main__":
    main()
