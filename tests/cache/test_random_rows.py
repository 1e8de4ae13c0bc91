"""Random numbers of transforms of rows that are read many at a time."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, StackDataset, Subset

import foreload as fl

COUNT = 6


def _add_noise(sample: Any) -> Any:
    if isinstance(sample, dict):
        return {name: _add_noise(value) for name, value in sample.items() if name != "__key__"}
    return torch.as_tensor(0 if isinstance(sample, bytes) else sample) + torch.rand(1).item()


def _drop_characters(text: str) -> list[int]:
    return [ord(character) for character in text if torch.rand(1).item() < 0.5]


class _Views(fl.HDF5Dataset):
    """Two views of each sample."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), super().__getitem__(index)

    def __getitems__(self, indices: Any) -> Any:  # type: ignore[override]
        load: Any = self._load_batch
        return list(zip(load(indices), load(indices), strict=True))


def _rows(folder: Path, kind: str) -> Any:
    if kind == "hdf5 within":
        _rows(folder, "hdf5")
        return fl.MemoryEfficientDataset(folder / "rows.h5", transform=_add_noise)
    if kind == "hdf5":
        with pytest.importorskip("h5py").File(folder / "rows.h5", "w") as file:
            file["data"] = np.arange(COUNT, dtype=np.float32)[:, None]
        return fl.HDF5Dataset(folder / "rows.h5", transform=_add_noise)
    if kind == "parquet":
        parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        parquet.write_table(arrow.table({"a": [float(row) for row in range(COUNT)]}), folder / "rows.parquet")
        return fl.ParquetDataset(folder / "rows.parquet", transform=_add_noise)
    if kind.startswith("text"):
        (folder / "texts.csv").write_text(
            "text,label\n" + "".join(f"{'ab' * row}c,{row}\n" for row in range(COUNT))
        )
        return fl.TextDataset(
            folder / "texts.csv",
            tokenizer=_drop_characters if kind == "text tokenizer" else None,
            target_transform=_add_noise,
            max_length=20,
            padding=kind != "texts of any length",
        )
    (folder / "files").mkdir()
    for row in range(COUNT):
        (folder / "files" / f"{row}.bin").write_bytes(bytes(row))
    fl.pack(folder / "files", folder / "shards")
    return fl.TarDataset(folder / "shards", transform=_add_noise)


@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize(
    "kind", ["hdf5", "hdf5 within", "parquet", "tar", "text", "text tokenizer", "texts of any length"]
)
def test_transforms_of_rows_that_are_read_together_draw_by_the_sample(
    kind: str, is_part: bool, tmp_path: Path
) -> None:
    dataset = _rows(tmp_path, kind)
    if is_part:
        dataset = Subset(dataset, [5, 3, 1, 4, 3, 0])

    def epochs(**options: Any) -> list[Any]:
        options = {"batch_size": 4, "num_workers": 0} | options
        with fl.DataLoader(dataset, seed=3, shuffle=True, collate_fn=list, **options) as loader:
            return [str(sample) for _ in range(2) for batch in loader for sample in batch]

    expected = epochs(batch_size=1)
    for way in ({}, {"batch_size": 3}, {"cache": "1MiB"}, {"num_workers": 2, "workers": "threads"}):
        assert epochs(**way) == expected, way


def test_a_batch_that_is_loaded_twice_draws_twice(tmp_path: Path) -> None:
    _rows(tmp_path, "hdf5")
    dataset = _Views(tmp_path / "rows.h5", transform=_add_noise)
    with fl.DataLoader(dataset, seed=3, batch_size=COUNT, num_workers=0, collate_fn=list) as loader:
        for batch in loader:
            assert all(one != other for one, other in batch)


def _both(sample: Any) -> Any:
    return [*torch.as_tensor(sample).flatten().tolist(), torch.rand(1).item()]


def _samples(dataset: Any, **options: Any) -> list[str]:
    options = {"batch_size": 4, "num_workers": 0, "seed": 3} | options
    with fl.DataLoader(dataset, collate_fn=list, **options) as loader:
        return [str(sample) for batch in loader for sample in batch]


def test_transforms_of_dataset_and_loader_draw_apart(tmp_path: Path) -> None:
    dataset = _rows(tmp_path, "hdf5")
    expected = _samples(dataset, transform=_both)
    for sample in expected:
        noisy, drawn = map(float, sample.strip("[]").split(", "))
        assert noisy % 1 != pytest.approx(drawn)
    processes = {"num_workers": 2, "workers": "processes"}
    for way in ({"batch_size": 1}, {"cache": "1MiB"}, {"num_workers": 2, "workers": "threads"}, processes):
        assert _samples(dataset, transform=_both, **way) == expected, way


def test_what_a_loaders_transform_draws_does_not_depend_on_the_cache() -> None:
    class Draws(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> int:
            torch.rand(index + 1)  # for a name of a temporary file, say
            return index

    def epochs(**options: Any) -> list[Any]:
        transform = lambda index: (index, torch.rand(1).item())
        with fl.DataLoader(Draws(), transform=transform, seed=3, num_workers=0, **options) as loader:
            return [batch[1].tolist() for _ in range(3) for batch in loader]

    assert epochs() == epochs(cache="1MiB")


def test_batches_of_arrays_and_stacked_datasets_draw_by_the_sample(tmp_path: Path) -> None:
    dataset = _rows(tmp_path, "hdf5")
    expected = _samples(dataset)
    torch.manual_seed(0)

    def of(kind: Any) -> list[str]:
        batches: Any = [kind([4, 1, 3]), kind([0])]
        order = {"seed": None, "batch_sampler": batches, "generator": torch.Generator().manual_seed(1)}
        with fl.DataLoader(dataset, collate_fn=list, **order) as loader:  # type: ignore[arg-type]
            return [str(sample) for batch in loader for sample in batch]

    assert of(list) == of(np.array)
    stacked = StackDataset(dataset, dataset)
    assert len({*_samples(stacked, batch_size=1), *_samples(stacked), *_samples(stacked, batch_size=3)}) == COUNT
    assert [sample.partition(", tensor")[0] for sample in _samples(stacked)] == [
        f"({sample}" for sample in expected
    ]


class _Squares(Dataset[float]):
    """Rows with a transform that is an attribute of the class, as of some datasets of torchvision."""

    transforms: Any = staticmethod(_add_noise)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.transforms(index**2)

    def __getitems__(self, indices: Any) -> list[Any]:
        return [self[index] for index in indices]


def test_stacked_datasets_draw_by_the_sample_wherever_they_have_their_transform() -> None:
    stacked = StackDataset(_Squares(), _Squares())
    assert len({*_samples(stacked, batch_size=1), *_samples(stacked), *_samples(stacked, batch_size=3)}) == COUNT


class _Loading(Dataset[Any]):
    """Samples that another loader makes, with what is drawn before and after it."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        with fl.DataLoader(range(2), 1, collate_fn=list, num_workers=0, **self.options) as inner:  # type: ignore[arg-type]
            return torch.rand(1).item(), [batch[0].item() for batch in inner], torch.rand(1).item()


@pytest.mark.parametrize("cache", [None, "1MiB"])
@pytest.mark.parametrize("seed", [None, 5])
def test_a_loader_within_a_dataset_leaves_the_draws_of_the_one_around_it_alone(
    seed: int | None, cache: str | None
) -> None:
    dataset = _Loading(transform=_add_noise, seed=seed, cache=cache)
    drawn = _samples(dataset)
    assert len(set(drawn)) == COUNT
    assert drawn == _samples(dataset, batch_size=1) == _samples(dataset, num_workers=2, workers="threads")
    first, within, last = zip(*map(ast.literal_eval, drawn), strict=True)
    assert len({*first, *last}) == 2 * COUNT
    # With a seed, what the loader within draws depends on nothing else.
    assert len({value for values in within for value in values}) == (2 * COUNT if seed is None else 2)


class _Shortened(fl.ParquetDataset):
    def prepare_samples(self, indices: Any, keep: Any = "auto") -> Any:
        return super().prepare_samples(indices, keep)[1:]


def test_a_dataset_that_prepares_too_few_samples_is_told_so(tmp_path: Path) -> None:
    _rows(tmp_path, "parquet")
    dataset = _Shortened(tmp_path / "rows.parquet", transform=_add_noise)
    with (
        fl.DataLoader(dataset, 4, num_workers=0, cache="1MiB") as loader,
        pytest.raises(
            ValueError, match=r"prepare_samples\(\) of _Shortened must return one for each of 4 samples, got 3"
        ),
    ):
        next(iter(loader))


@pytest.mark.parametrize(
    "options", [{}, {"transform": tuple}, {"num_workers": 1, "workers": "processes"}], ids=str
)
def test_a_cache_keeps_nothing_of_images_in_memory(options: dict[str, Any]) -> None:
    class Shifted(fl.ImageArrayDataset):
        def __getitems__(self, indices: Any) -> Any:  # type: ignore[override]
            return [(image, target + 100) for image, target in self._load_batch(indices)]

    arguments: Any = {
        "images": np.zeros((COUNT, 8, 8, 3), np.uint8),
        "targets": list(range(COUNT)),
        "transform": fl.transforms.train_small(8),
    }
    with fl.DataLoader(Shifted(**arguments), cache="1MiB", collate_fn=list, **options) as loader:
        assert [target for batch in loader for _, target in batch] == list(range(100, 100 + COUNT))
    dataset = fl.ImageArrayDataset(**arguments)
    options = {"num_workers": 0} | options
    with fl.DataLoader(dataset, cache="1MiB", collate_fn=list, **options) as loader:
        last = -3.0
        warnings.simplefilter("error")  # of the transform, whose results would be kept
        for step in range(2):  # filled anew by the loop
            dataset.images.fill_(200 * step)
            dataset.targets.fill_(step)
            images, targets = zip(*(sample for batch in loader for sample in batch), strict=True)
            assert set(targets) == {step}
            before, last = last, max(image.max().item() for image in images)
            assert last > before


class _Prepared(_Squares):
    """Only whole batches, made by what has the names of transforms."""

    transforms = None

    def transform(self, number: int) -> int:
        return number + 1

    @property
    def target_transform(self) -> Any:
        raise AssertionError("code of the dataset's was run")

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def __getitems__(self, indices: Any) -> list[Any]:
        return [self.transform(index) for index in indices]


def test_parts_whose_methods_are_named_as_transforms_are_asked_for_whole_batches() -> None:
    stacked = StackDataset(_Prepared(), _Prepared())
    loader = fl.DataLoader(stacked, COUNT, num_workers=0, seed=1, collate_fn=list)
    assert list(loader) == [[(number, number) for number in range(1, COUNT + 1)]]
