"""Pipelines in foreload's order, resumed and reported on as its loader is: by a stand-in for DALI."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foreload as fl
from foreload.dali import DALILoader
from foreload.dali.feed import FedPipeline
from tests.conftest import jpeg, photo
from tests.dali.stand_in import Output, Pipeline

COUNT = 22


def first_values(data: np.ndarray, label: np.ndarray) -> Any:
    """The work of the pipelines: the first two bytes of a file, and its label; a file of zeros is an error."""
    if not data.any():
        raise ValueError("a file of zeros")
    return data[:2].copy(), label.copy()


def stand_in(source: Any, *, batch_size: int, prefetch_queue_depth: int) -> Any:
    return Pipeline(source, first_values, batch_size, prefetch_queue_depth)


class Files(torch.utils.data.Dataset[Any]):
    """A file's bytes, of a length of its own, and its number; some cannot be read, some not be worked on."""

    def __init__(self, unreadable: tuple[int, ...] = (), zeros: tuple[int, ...] = ()) -> None:
        self.unreadable, self.zeros = unreadable, zeros

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if index in self.unreadable:
            raise FileNotFoundError(2, "No such file or directory", self.path(index))
        length = 3 + index % 5
        return (bytes(length) if index in self.zeros else bytes([index + 1] * length)), index

    def path(self, index: int) -> str:
        return f"{index}.bin"


def make(dataset: Any = None, **more: Any) -> DALILoader:
    how: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 1, "num_workers": 2, "workers": "threads"}
    return DALILoader(Files() if dataset is None else dataset, stand_in, **{**how, **more})


def labels(loader: Any) -> list[list[int]]:
    found = []
    for values, numbers in loader:
        assert values.tolist() == [[number + 1] * 2 for number in numbers.tolist()]
        found.append(numbers.tolist())
    return found


def expected(**more: Any) -> Any:
    how: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 1, "num_workers": 0}
    return fl.DataLoader(range(COUNT), **{**how, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize("more", [{}, {"drop_last": True}, {"shuffle": False}, {"batch_size": 30}], ids=str)
def test_the_order_is_that_of_the_loader(depth: int, more: dict[str, Any]) -> None:
    loader, order = make(depth=depth, **more), expected(**more)
    assert len(loader) == len(order)
    for _ in range(3):
        assert labels(loader) == [batch.tolist() for batch in order]
    loader.set_epoch(7), order.set_epoch(7)
    assert labels(loader) == [batch.tolist() for batch in order]


@pytest.mark.parametrize("more", [{"num_workers": 0}, {"workers": "processes"}, {"cache": "1MiB"}], ids=str)
def test_whoever_reads(more: dict[str, Any]) -> None:
    loader = make(**more)
    for _ in range(2):
        assert sorted(chain.from_iterable(labels(loader))) == list(range(COUNT))


class PageLocked:
    """A tensor of the CPU in page-locked memory, which torch does not take by DLPack."""

    shape = (2,)

    def __init__(self) -> None:
        self.memory = np.arange(2)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 3, 0

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("Unsupported device_type: 3")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.memory.copy() if copy else self.memory


class Ragged(Output):
    def is_dense_tensor(self) -> bool:
        return False


def test_outputs_in_page_locked_memory_are_copied() -> None:
    tensor: Any = PageLocked()
    (found,) = FedPipeline(lambda source: None)._to_torch(Ragged([tensor]))
    tensor.memory[:] = 7
    assert found.tolist() == [0, 1]


def test_batches_stay_as_they_are() -> None:
    loader = make(depth=3)
    kept = list(loader)
    assert [numbers.tolist() for _, numbers in kept] == labels(make())
    assert all((values[:, 0] == numbers + 1).all() for values, numbers in kept)


@pytest.mark.parametrize("depth", [1, 3])
def test_an_epoch_goes_on_where_it_was_left(depth: int) -> None:
    whole = labels(make())
    loader = make(depth=depth)
    epoch = iter(loader)
    for given in range(len(whole)):
        again = make(depth=depth)
        again.load_state_dict(loader.state_dict())
        assert labels(again) == whole[given:]
        assert next(epoch)[1].tolist() == whole[given]
    with pytest.raises(StopIteration):
        next(epoch)
    assert loader.state_dict()["finished"]
    for given, _ in enumerate(loader, 1):
        if given == 2:
            break
    gc.collect()
    again.load_state_dict(loader.state_dict())
    following = expected()
    following.set_epoch(1)
    assert labels(again) == [batch.tolist() for batch in following][2:]


def test_an_epoch_that_is_left_does_not_disturb_the_next() -> None:
    Pipeline.made = 0
    loader = make(depth=3)
    for _ in loader:
        break
    order = expected()
    order.set_epoch(1)
    assert labels(loader) == [batch.tolist() for batch in order]
    old = iter(loader)
    next(old)
    new = iter(loader)
    with pytest.raises(RuntimeError, match="another epoch of this DALILoader has begun"):
        next(old)
    assert len(list(new)) == len(order)
    assert Pipeline.made == 1


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_samples_that_fail_are_left_out(on_error: Any, depth: int) -> None:
    dataset = Files(unreadable=(3, 12), zeros=(5, 6, 20))
    loader = make(dataset, on_error=on_error, depth=depth)
    clean = expected()
    for _ in range(2):
        for found, wanted in zip(labels(loader), clean, strict=True):
            kept = [number for number in wanted.tolist() if number not in (3, 12, 5, 6, 20)]
            assert set(found) == set(kept)
            assert len(found) == (len(kept) if on_error == "skip" else len(wanted))
    errors = {(error.index, error.source, error.error.partition(":")[0]) for error in loader.errors}
    assert errors == {
        *((number, f"{number}.bin", "FileNotFoundError") for number in (3, 12)),
        *((number, f"{number}.bin", "RuntimeError") for number in (5, 6, 20)),
    }
    assert len(loader.errors) == 10


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("kind", ["unreadable", "zeros"])
def test_an_error_names_its_sample_and_the_epoch_goes_on(kind: str, depth: int) -> None:
    loader = make(Files(**{kind: (9, 10)}), shuffle=False, batch_size=3, depth=depth)
    epoch, found = iter(loader), []
    states = {}
    while True:
        try:
            found.append(next(epoch)[1].tolist())
        except StopIteration:
            break
        except (RuntimeError, FileNotFoundError) as error:
            text = "".join([str(error), *getattr(error, "__notes__", [])])
            assert "sample 9 (position 0 of its batch)" in text
            found.append(type(error))
            states["after"] = loader.state_dict()
    error_type = FileNotFoundError if kind == "unreadable" else RuntimeError
    assert found == [[0, 1, 2], [3, 4, 5], [6, 7, 8], error_type, *labels(make(shuffle=False, batch_size=3))[4:]]
    again = make(shuffle=False, batch_size=3)
    again.load_state_dict(states["after"])
    assert labels(again)[0] == [12, 13, 14]


def test_batches_of_which_nothing_is_left_are_left_out() -> None:
    loader = make(Files(zeros=(2, 3)), shuffle=False, batch_size=1, on_error="skip")
    assert list(chain.from_iterable(labels(loader))) == [n for n in range(COUNT) if n not in (2, 3)]
    loader = make(Files(zeros=(2, 3, 4)), shuffle=False, batch_size=1, on_error="skip", max_errors=2)
    with pytest.raises(RuntimeError, match="3 samples failed in this epoch, more than max_errors = 2"):
        list(loader)


def test_ranks_share_the_samples() -> None:
    parts = [labels(make(group=(rank, 2))) for rank in range(2)]
    assert [len(part) for part in parts] == [3, 3]
    assert sorted(chain.from_iterable(parts[0] + parts[1])) == list(range(COUNT))


def test_numbers_that_a_dataset_draws_are_part_of_the_order() -> None:
    class Drawn(Files):
        def __getitem__(self, index: int) -> Any:
            data, label = super().__getitem__(index)
            return data, label + 100 * torch.rand(()).item()

    numbers = lambda loader: [found.tolist() for _, found in loader]
    assert numbers(make(Drawn())) == numbers(make(Drawn(), num_workers=0))
    loader = make(Drawn())
    for _ in loader:
        break
    again = make(Drawn())
    again.load_state_dict(loader.state_dict())
    assert numbers(again) == numbers(make(Drawn()))[1:]


def test_outputs_may_have_names_and_shapes_of_their_own() -> None:
    whole: Callable[..., Any] = lambda source, batch_size, prefetch_queue_depth: Pipeline(
        source, lambda data, label: (data.copy(), label.copy()), batch_size, prefetch_queue_depth
    )
    loader = DALILoader(Files(), whole, 3, outputs=("file", "number"), num_workers=0)
    for batch in loader:
        assert [len(file) for file in batch["file"]] == [3 + n % 5 for n in batch["number"].tolist()]
    with pytest.raises(ValueError, match="outputs has 1 names, but the pipeline returns 2 outputs; give one name"):
        next(iter(DALILoader(Files(), whole, 3, outputs=("file",), num_workers=0)))
    one = lambda source, batch_size, prefetch_queue_depth: Pipeline(
        source, lambda value: (value.copy(),), batch_size, prefetch_queue_depth
    )
    assert [batch[0].tolist() for batch in DALILoader([3, 4, 5], one, 2, num_workers=0)] == [[3, 4], [5]]


def test_images_come_as_their_files(tmp_path: Path) -> None:
    paths = []
    for number in range(5):
        paths.append(tmp_path / f"{number}.jpg")
        paths[-1].write_bytes(jpeg(photo(20 + number, 20, number)))
    whole = lambda source, batch_size, prefetch_queue_depth: Pipeline(
        source, lambda data, label: (data.copy(), label.copy()), batch_size, prefetch_queue_depth
    )
    for dataset in (fl.ImageDataset(paths, labels=list(range(5))), fl.FileDataset(paths, labels=list(range(5)))):
        loader = DALILoader(dataset, whole, 2, shuffle=True, seed=0)
        count = 0
        for files, numbers in loader:
            for file, number in zip(files, numbers.tolist(), strict=True):
                assert bytes(file.tolist()) == paths[number].read_bytes()
                count += 1
        assert count == 5
        assert loader.stats()["workers"]["kind"] == "threads"


def test_the_report_counts_what_the_loop_gets() -> None:
    loader = make()
    count = len(list(loader))
    stats = loader.stats()
    assert (stats["batches"], stats["samples"]) == (count, COUNT)
    copied = stats["stages"]["device"]
    assert copied["count"] == count
    assert copied["bytes"] == sum(3 + n % 5 + 8 for n in range(COUNT))
    assert "batches" in str(loader.report())
    epoch = iter(loader)
    next(epoch)
    loader.close()
    assert len(list(loader)) == count


def test_it_can_be_pickled() -> None:
    loader = make()
    next(iter(loader))
    again = pickle.loads(pickle.dumps(loader))
    assert again.batch_size == 4
    assert len(again) == len(loader)
    again.set_epoch(0)
    assert labels(again) == labels(make())


def test_what_cannot_be_is_said() -> None:
    for name in ("device", "collate_fn", "device_transform", "pin_memory"):
        with pytest.raises(TypeError, match=f"{name} is up to the pipeline"):
            make(**{name: None})
    with pytest.raises(TypeError, match="pipeline must be a function under DALI's pipeline_def, got int"):
        DALILoader(Files(), 3)  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match="must return a DALI pipeline, as a pipeline_def function does, got NoneType"
    ):
        next(iter(DALILoader(Files(), lambda source, **_: None)))
    with pytest.raises(TypeError, match="dataset must have samples with indices"):
        DALILoader(fl.ImageDataset.stream, stand_in)
    with pytest.raises(ValueError, match="batch_size must be 1 or more"):
        make(batch_size=0)
    with pytest.raises(TypeError, match="field 0 of sample 0 is str; convert it in the dataset"):
        next(iter(DALILoader(["text"], stand_in, num_workers=0)))


def test_a_state_after_an_error_and_a_loop_that_was_left_is_of_its_last_batch() -> None:
    loader = make(Files(zeros=(9,)), shuffle=False, batch_size=3, depth=3)
    with pytest.raises(RuntimeError, match="a file of zeros"):
        for _ in loader:
            pass
    gc.collect()
    again = make(shuffle=False, batch_size=3)
    again.load_state_dict(loader.state_dict())
    assert labels(again)[0] == [12, 13, 14]
    loader = make(Files(zeros=(9,)), shuffle=False, batch_size=3, depth=3, on_error="skip")
    for given, _ in enumerate(loader, 1):
        if given == 4:  # the pipeline was let go of, and what was under way is ready
            break
    gc.collect()
    again.load_state_dict(loader.state_dict())
    assert labels(again)[0] == [12, 13, 14]


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_state_before_a_sample_that_cannot_be_read_keeps_its_batch(depth: int) -> None:
    loader = make(Files(unreadable=(9,)), shuffle=False, batch_size=3, depth=depth)
    epoch = iter(loader)
    for _ in range(3):  # the fourth batch has failed by then, further ahead
        next(epoch)
    again = make(shuffle=False, batch_size=3)
    again.load_state_dict(loader.state_dict())
    assert labels(again)[0] == [9, 10, 11]
