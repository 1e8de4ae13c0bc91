"""With ``seed=``, random numbers are functions of (seed, epoch, index): no cache or batch changes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, default_collate

import foreload as fl
from foreload.cache.wrappers import unwrap

COUNT = 9


class Whole(Dataset[Any]):
    """Loads whole batches."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index))

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class Drawn(Dataset[Any]):
    """Draws random numbers from each of the global generators."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.random(), np.random.rand(), float(torch.rand(()))], dtype=torch.float64)


def noisy(sample: Any) -> Any:
    image = sample[0] if isinstance(sample, tuple) else sample
    return image + random.random() + np.random.rand() + torch.rand(())


def jittered(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((4, 4)))) * random.random()


def photos(folder: Path) -> list[Path]:
    paths = [folder / f"{number}.jpg" for number in range(COUNT)]
    for number, path in enumerate(paths):
        pixels = np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)
        Image.fromarray(pixels).resize((48, 40)).save(path)
    return paths


Make = Callable[[list[Path]], Any]
DATASETS: dict[str, Make] = {
    "whole batches": lambda paths: Whole(),
    "part of whole batches": lambda paths: Subset(Whole(), [5, 3, 1, 4, 3]),
    "images, random": lambda paths: fl.ImageDataset(paths, transform=fl.transforms.train(16), labels=[0] * COUNT),
    "images, fixed": lambda paths: fl.ImageDataset(paths, transform=fl.transforms.val(16), labels=[0] * COUNT),
    "part of images": lambda paths: Subset(
        fl.ImageDataset(paths, transform=jittered, labels=[0] * COUNT), [3, 4, 5, 4]
    ),
    "images in memory": lambda paths: fl.ImageArrayDataset(
        torch.randint(0, 256, (COUNT, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),
        list(range(COUNT)),
        transform=fl.transforms.val_small(8),
    ),
}


def loaded(dataset: Any, **options: Any) -> torch.Tensor:
    options = {"batch_size": 4, "num_workers": 0} | options
    with fl.DataLoader(dataset, seed=3, **options) as loader:
        return torch.cat([batch for _ in range(2) for batch in loader])


@pytest.mark.filterwarnings(
    "ignore:sample .* more than the cache's whole budget", "ignore:the cache keeps samples as"
)
@pytest.mark.parametrize("name", DATASETS)
def test_a_transform_draws_the_same_whatever_is_cached_and_however_samples_are_batched(
    name: str, tmp_path: Path
) -> None:
    dataset = DATASETS[name](photos(tmp_path))
    expected = loaded(dataset, transform=noisy)
    for cache in (0, 2000, "1MiB"):
        assert torch.equal(loaded(dataset, transform=noisy, cache=cache), expected), cache
    for size in (1, 3, COUNT):
        assert torch.equal(loaded(dataset, transform=noisy, batch_size=size), expected), size
    for workers in ("threads", "processes"):
        assert torch.equal(loaded(dataset, transform=noisy, workers=workers, num_workers=2), expected), workers


def unchanged(sample: Any) -> Any:
    return sample


def own(samples: list[Any]) -> Any:
    return default_collate(samples)


class Twice(fl.ImageDataset):
    """Two views of each image."""

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return (super().__getitem__(index)[0], *super().__getitem__(index))


def randomly(paths: list[Path], kind: Any = fl.ImageDataset, **options: Any) -> Any:
    return kind(paths, 16, transform=fl.transforms.train(16), labels=[*range(COUNT)], **options)


def small() -> Any:
    images = torch.randint(
        0, 256, (COUNT, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    return fl.ImageArrayDataset(images, list(range(COUNT)), transform=fl.transforms.train_small(12, padding=2))


NATIVE: dict[str, Make] = {
    "images": randomly,
    "images, cached": lambda paths: randomly(paths, loading_mode="cached"),
    "part of images": lambda paths: Subset(Subset(randomly(paths), range(1, COUNT)), [5, 3, 1, 4, 3]),
    "two views": lambda paths: randomly(paths, Twice),
    "several images": lambda paths: StackDataset(randomly(paths), randomly(paths)),
    "images in memory": lambda paths: small(),
    "part of images in memory": lambda paths: Subset(small(), [5, 3, 1, 4, 3]),
    "several images in memory": lambda paths: StackDataset(a=small(), b=StackDataset(small())),
}


@pytest.mark.parametrize("name", NATIVE)
def test_a_native_transform_draws_the_same_however_images_are_loaded(name: str, tmp_path: Path) -> None:
    dataset = NATIVE[name](photos(tmp_path))

    def all_of(sample: Any) -> list[torch.Tensor]:
        if isinstance(sample, torch.Tensor):
            return [sample]
        parts = sample.values() if isinstance(sample, dict) else sample
        return [tensor for part in parts for tensor in all_of(part)]

    def epochs(**options: Any) -> list[torch.Tensor]:
        options = {"batch_size": 4, "num_workers": 0} | options
        with fl.DataLoader(dataset, seed=3, shuffle=True, **options) as loader:
            batches = [all_of(batch) for _ in range(2) for batch in loader]
        return [torch.cat(parts) for parts in zip(*batches, strict=True)]

    processes: dict[str, Any] = {"num_workers": 2, "workers": "processes"}
    ways: list[dict[str, Any]] = [
        *({"batch_size": size} for size in (1, 3, COUNT)),
        *({"transform": unchanged} | more for more in ({}, {"num_workers": 2, "workers": "threads"})),
        {"collate_fn": own},
        {"on_error": "skip"},
        processes,
        processes | {"batch_size": 1},
    ]
    if isinstance(unwrap(dataset)[0], fl.ImageDataset | fl.ImageArrayDataset) and not isinstance(dataset, Twice):
        budgets = "1MiB", "8KiB", fl.Cache("1MiB", keep="encoded"), fl.Cache("1MiB", keep="decoded")
        ways += [processes | {"cache": budget} for budget in budgets]
        ways += [{"cache": "1MiB"}, {"cache": "1MiB", "transform": unchanged}]
    expected = epochs()
    for way in ways:
        assert all(map(torch.equal, epochs(**way), expected)), way
    if name == "two views":
        assert not torch.equal(expected[0], expected[1])


class Again(fl.ImageDataset):
    """Each image several times."""

    def __len__(self) -> int:
        return 3 * COUNT

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return super().__getitem__(index % COUNT)


class AgainAtOnce(fl.ImageDataset):
    def __len__(self) -> int:
        return 3 * COUNT

    def __getitems__(self, indices: Any) -> Any:
        return [super(AgainAtOnce, self).__getitem__(index % COUNT) for index in indices]


class AgainFromCache(fl.ImageDataset):
    def finish_sample(self, index: int, prepared: Any) -> tuple[Any, ...]:
        return super().finish_sample(0, (prepared[0], index))


class SmallAgain(fl.ImageArrayDataset):
    def __len__(self) -> int:
        return 3 * COUNT

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return super().__getitem__(index % COUNT)


@pytest.mark.parametrize("kind", [Again, AgainAtOnce, AgainFromCache, SmallAgain])
def test_a_subclass_gets_other_crops_of_an_image_each_time(kind: Any, tmp_path: Path) -> None:
    if kind is SmallAgain:
        dataset = SmallAgain(
            np.stack([np.arange(768, dtype=np.uint8).reshape(16, 16, 3)] * COUNT), list(range(COUNT))
        )
        dataset.transform = fl.transforms.train_small(16, padding=4, hflip=0.5)
    else:
        dataset = randomly([photos(tmp_path)[0]] * COUNT, kind)
    loaded = []
    for options in (
        {},
        {"num_workers": 0},
        {"seed": 1},
        {"seed": 1, "num_workers": 0},
        {"seed": 1, "num_workers": 2},
    ):
        with fl.DataLoader(dataset, batch_size=4, **options) as loader:
            loaded.append(torch.cat([images for images, _ in loader]))
        views = loaded[-1][::COUNT] if len(dataset) > COUNT else loaded[-1][:3]
        assert not torch.equal(views[0], views[1]) or not torch.equal(views[0], views[2]), options
    assert torch.equal(loaded[2], loaded[3])
    assert torch.equal(loaded[2], loaded[4])


class Fewer(Whole):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices if index % 2]


def test_batches_may_leave_samples_out_before_a_transform() -> None:
    with fl.DataLoader(Fewer(), 4, seed=1, num_workers=0, transform=lambda x: x + 1, drop_last=True) as loader:
        assert [batch[:, 0].tolist() for batch in loader] == [[2, 4], [6, 8]]


class More(Whole):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices for _ in range(2)]


def test_batches_may_have_more_samples_before_a_transform() -> None:
    with fl.DataLoader(More(), 2, seed=1, num_workers=0, transform=lambda x: x + 1, drop_last=True) as loader:
        assert next(iter(loader))[:, 0].tolist() == [1, 1, 2, 2]


def test_an_image_may_be_finished_under_any_number(tmp_path: Path) -> None:
    dataset = randomly(photos(tmp_path))
    prepared = dataset.prepare_sample(2)
    torch.manual_seed(4)
    expected = dataset.finish_sample(2, prepared)[0]
    torch.manual_seed(4)
    assert torch.equal(dataset.finish_sample(-1, prepared)[0], expected)


@pytest.mark.filterwarnings("ignore:the cache keeps samples as")
def test_a_part_by_negative_indices_may_be_cached(tmp_path: Path) -> None:
    images = fl.ImageDataset(photos(tmp_path), 16, labels=[*range(COUNT)])
    expected = [images[index][0] for index in (-1, 3, -2)]
    for part in (Subset(images, [-1, 3, -2]), Subset(Subset(images, [-1, 0, 3, -2]), [0, 2, 3])):
        with fl.DataLoader(part, 3, num_workers=0, cache="1MiB") as loader:
            for _ in range(2):
                ((batch, _),) = loader
                assert torch.equal(batch, torch.stack(expected))


@pytest.mark.parametrize("wrapped", [Subset, ConcatDataset, StackDataset])
def test_a_sample_of_a_part_draws_the_same_in_any_batch(wrapped: Any) -> None:
    wrap = {
        Subset: lambda: Subset(Subset(Drawn(), range(COUNT)), [7, 2, 2, 5, 1]),
        ConcatDataset: lambda: ConcatDataset([Drawn(), Drawn()]),
        StackDataset: lambda: StackDataset(Drawn(), list(range(COUNT))),
    }[wrapped]

    def first(samples: list[Any]) -> torch.Tensor:
        return torch.stack([sample[0] if isinstance(sample, tuple) else sample for sample in samples])

    expected = loaded(wrap(), batch_size=1, collate_fn=first)
    for size in (2, 3, 20):
        assert torch.equal(loaded(wrap(), batch_size=size, collate_fn=first), expected), size


@pytest.mark.parametrize("policy", ["opt", "fixed", "lru", "lfu", "fifo", "random"])
def test_no_policy_changes_what_samples_or_the_loop_draw(policy: Any) -> None:
    expected = loaded(Drawn())[:COUNT]
    with fl.DataLoader(Drawn(), 4, num_workers=0, seed=3, cache=fl.Cache("1MiB", policy=policy)) as loader:
        states = random.getstate(), np.random.get_state()[1].copy()
        assert torch.equal(torch.cat(list(loader)), expected)
        assert random.getstate() == states[0]
        assert (np.random.get_state()[1] == states[1]).all()


@pytest.mark.parametrize("policy", ["opt", "fifo"])
def test_without_a_seed_a_policy_changes_no_draws_either(policy: Any) -> None:
    def draws(**options: Any) -> tuple[torch.Tensor, float, float]:
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        order = [4, 1, 0, 7, 2]
        with fl.DataLoader(Drawn(), 2, sampler=order, num_workers=0, **options) as loader:
            return torch.cat(list(loader)), random.random(), float(np.random.rand())

    expected, *then = draws()
    found, *after = draws(cache=fl.Cache("1MiB", policy=policy))
    assert torch.equal(found, expected)
    assert after == then
