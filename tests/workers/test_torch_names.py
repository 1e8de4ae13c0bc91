"""Attributes of torch's loaders and iterators that scripts and frameworks read, some of them private.

Public code shows which these are: loops that end persistent workers, loaders that never end their epoch,
progress that is read from the iterator.
"""

from __future__ import annotations

import itertools
import multiprocessing
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, TensorDataset
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _MultiProcessingDataLoaderIter

import foreload as fl
from tests import leftovers
from tests.workers.kinds import Count, Numbers

WORKERS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
    "chosen": {"num_workers": 2},
    "auto": {},
    "on a device": {"num_workers": 2, "device": "meta"},
}
PERSISTENT = [name for name, options in WORKERS.items() if options.get("num_workers") != 0]

every_kind = pytest.mark.parametrize("options", WORKERS.values(), ids=WORKERS)


@every_kind
@pytest.mark.parametrize("sampled", [{}, {"batch_size": None}, {"shuffle": True}], ids=str)
def test_a_loader_has_what_torchs_has(options: dict[str, Any], sampled: dict[str, Any]) -> None:
    data = Numbers()
    stock, ours = TorchDataLoader(data, **sampled), fl.DataLoader(data, **sampled, **options)
    assert ours._dataset_kind == stock._dataset_kind == _DatasetKind.Map
    assert ours._auto_collation == stock._auto_collation
    assert type(ours._index_sampler) is type(stock._index_sampler)
    assert (ours._index_sampler is ours.batch_sampler) == (stock._index_sampler is stock.batch_sampler)
    assert ours._iterator is stock._iterator is None
    assert ours._IterableDataset_len_called is None
    assert vars(ours)["_DataLoader__initialized"]
    assert {*vars(stock)} <= {*vars(ours)}
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        ours.batch_size = 3


def test_the_length_of_a_stream_is_remembered_as_in_torch() -> None:
    class Known(Count):
        def __len__(self) -> int:
            return self.size

    for make in (TorchDataLoader, fl.DataLoader):
        loader = make(Known(10), batch_size=4)
        assert loader._dataset_kind == _DatasetKind.Iterable
        assert len(loader) == 3
        assert loader._IterableDataset_len_called == 10


@every_kind
def test_an_iterator_has_what_scripts_read_of_torchs(options: dict[str, Any]) -> None:
    data = Numbers()
    stock, loader = TorchDataLoader(data, batch_size=4), fl.DataLoader(data, batch_size=4, **options)
    expected: Any = iter(stock)
    batches: Any = iter(loader)
    assert isinstance(batches, _BaseDataLoaderIter)
    assert batches._dataset is expected._dataset is data
    assert batches._index_sampler is loader._index_sampler
    assert len(batches) == len(expected)
    for taken in range(6):
        assert batches._num_yielded == expected._num_yielded == taken
        if taken < 5:
            assert batches._next_data().shape == next(expected).shape


@every_kind
def test_get_iterator_begins_an_epoch_and_may_be_replaced(options: dict[str, Any]) -> None:
    loader: Any = fl.DataLoader(Numbers(), batch_size=4, **options)
    assert len([*loader._get_iterator()]) == 5
    begun = []
    own = loader._get_iterator
    loader._get_iterator = lambda: begun.append(1) or own()
    assert len([*loader]) == 5
    assert begun == [1]


@pytest.mark.parametrize("base", [TorchDataLoader, fl.DataLoader])
def test_get_iterator_may_return_an_iterator_of_torchs(base: Any) -> None:
    class Own(_MultiProcessingDataLoaderIter): ...

    class Loader(base):  # type: ignore[misc]
        def _get_iterator(self) -> Any:
            return Own(self)

    loader = Loader(Numbers(), batch_size=4, num_workers=1, persistent_workers=True)
    torch.manual_seed(3)
    first, drawn = iter(loader), torch.get_rng_state()
    assert type(first) is Own
    expected = [batch.tolist() for batch in first]
    assert iter(loader) is first
    assert [batch.tolist() for batch in first] == expected
    assert torch.equal(torch.get_rng_state(), drawn)  # its workers keep their seed


def test_get_iterator_may_wrap_the_iterator_of_each_epoch() -> None:
    class Loader(fl.DataLoader[Any]):
        def _get_iterator(self) -> Any:
            return map(len, super()._get_iterator())

    loader = Loader(Numbers(), batch_size=4, num_workers=1, persistent_workers=True)
    assert [*loader] == [*loader] == [4] * 5
    loader.close()


@pytest.mark.parametrize("base", [TorchDataLoader, fl.DataLoader])
@pytest.mark.parametrize("given", [1, None, "auto"])
def test_a_derived_class_may_set_attributes_before_it_is_a_loader(base: Any, given: Any) -> None:
    class Loader(base):  # type: ignore[misc]
        def __init__(self, data: Any) -> None:
            self.batch_size, self.num_workers, self._iterator = 4, given, None
            assert self.num_workers == given
            super().__init__(data, batch_size=4, num_workers=0)

    loader = Loader(Numbers())
    assert loader.num_workers == 0
    assert len([*loader]) == 5


@pytest.mark.parametrize("make", [TorchDataLoader, fl.DataLoader])
def test_get_iterator_starts_workers_with_what_the_dataset_is_now(make: Any) -> None:
    data = Count(8)  # (as a loader that repeats itself does when it is reset)
    loader = make(data, batch_size=4, num_workers=1, persistent_workers=True)
    assert sum(len(batch) for batch in loader) == 8
    data.size = 4
    assert sum(len(batch) for batch in loader) == 8
    assert sum(len(batch) for batch in loader._get_iterator()) == 4


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PERSISTENT)
def test_persistent_workers_are_ended_by_torchs_own_name_for_it(name: str) -> None:
    loader: Any = fl.DataLoader(Numbers(), batch_size=4, persistent_workers=True, **WORKERS[name])
    before = leftovers.processes()
    for _ in range(2):
        batches = iter(loader)
        next(batches)
        assert not loader._iterator._shutdown
        workers = list(loader._iterator._workers)
        assert len(workers) == (2 if name in ("processes", "chosen", "on a device") else 0)
        assert all(worker.is_alive() and worker in multiprocessing.active_children() for worker in workers)
        loader._iterator._shutdown_workers()
        assert not any(worker.is_alive() for worker in workers)
        assert loader._iterator._shutdown or not workers
        assert not leftovers.threads()
        assert not leftovers.running(before)
        assert len([*loader]) == 5  # by new ones
        loader._iterator._shutdown_workers()
        loader._iterator = None
    del loader._iterator
    assert len([*loader]) == 5
    loader.close()


@pytest.mark.parametrize("name", ["threads", "processes", "on a device"])
def test_workers_of_one_epoch_too(name: str) -> None:
    before = leftovers.processes()
    batches: Any = iter(fl.DataLoader(Numbers(), batch_size=4, **WORKERS[name]))
    next(batches)
    batches._shutdown_workers()
    assert batches._shutdown
    assert not leftovers.threads()
    assert not leftovers.running(before)


def test_an_epoch_on_a_device_that_torchs_way_would_begin_again_says_how_to() -> None:
    loader: Any = fl.DataLoader(Numbers(), batch_size=4, device="cpu", device_transform=len)
    batches = iter(loader)
    with pytest.raises(RuntimeError, match=r"call iter\(loader\)"):
        batches._reset(loader)


class Endless:
    """A batch sampler that begins again and again."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(itertools.repeat(self.sampler))


def endless(kind: Any) -> Any:
    """Return a class of loaders that keep one epoch for ever, as several libraries have it."""

    class OneEpoch(kind):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            return itertools.islice(self.iterator, len(self))

        def end(self) -> None:
            for worker in getattr(self.iterator, "_workers", ()):
                if worker.is_alive():
                    worker.terminate()
            if hasattr(self.iterator, "_shutdown_workers"):
                self.iterator._shutdown_workers()

    return OneEpoch


@every_kind
@pytest.mark.parametrize("data", [Numbers(), TensorDataset(torch.arange(20))], ids=["samples", "rows"])
def test_a_loader_that_never_ends_its_epoch(data: Dataset[Any], options: dict[str, Any]) -> None:
    before = leftovers.processes()
    seen = []
    for kind, how in ((TorchDataLoader, {}), (fl.DataLoader, options)):
        torch.manual_seed(3)
        loader = endless(kind)(data, batch_size=8, shuffle=True, **how)
        epochs = [[batch[0] if isinstance(batch, list) else batch for batch in loader] for _ in range(3)]
        assert [len(epoch) for epoch in epochs] == [3, 3, 3]
        if how.get("device") is None:
            seen.append([batch.tolist() for epoch in epochs for batch in epoch])
        loader.end()
        assert not leftovers.threads()
        assert not leftovers.running(before)
    assert seen[0] == seen[-1]


def test_the_sampler_is_reached_as_in_torch() -> None:
    generator = torch.Generator()
    loader: Any = fl.DataLoader(Numbers(), batch_size=4, shuffle=True, generator=generator)
    orders = []
    for _ in range(2):
        loader._index_sampler.sampler.generator.manual_seed(5)
        orders.append(torch.cat([*loader]).tolist())
    assert orders[0] == orders[1]
    assert loader.batch_sampler.sampler is loader.sampler
    assert loader.sampler.data_source is loader.dataset
    object.__setattr__(loader, "batch_sampler", [[3, 4], [5]])
    assert [batch.tolist() for batch in loader] == [[3, 4], [5]]


@pytest.mark.sampled(2)
@every_kind
def test_torchs_profiler_shows_the_time_that_the_loop_waits(options: dict[str, Any]) -> None:
    counts = []
    for loader in (TorchDataLoader(Numbers(), batch_size=4), fl.DataLoader(Numbers(), batch_size=4, **options)):
        list(loader)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            list(loader)
        events = [event for event in profile.key_averages() if event.key.startswith("enumerate(DataLoader)#")]
        counts.append([event.count for event in events])
    assert counts == [[6], [6]]


has_cores = pytest.mark.skipif(not hasattr(torch._utils, "cpu_count"), reason="the oldest torch asks the system")


@has_cores
@pytest.mark.parametrize("options", [{}, {"workers": "processes"}], ids=str)
def test_more_processes_than_cores_are_warned_of_as_in_torch(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._utils, "cpu_count", lambda: 1)
    with pytest.warns(UserWarning, match="This DataLoader will create 2 worker processes"):
        assert len([*fl.DataLoader(Numbers(), batch_size=4, num_workers=2, **options)]) == 5


@has_cores
@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "workers": "threads"}, {"num_workers": 0}], ids=str)
def test_other_workers_are_not_warned_of(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._utils, "cpu_count", lambda: 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len([*fl.DataLoader(Numbers(), batch_size=4, **options)]) == 5


class Chunks(BatchSampler):
    """A batch sampler that a library has put in place of the loader's."""


OPTIONS: list[dict[str, Any]] = [
    *WORKERS.values(),
    {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3},
    {"seed": 1, "shuffle": True},
    {"cache": "1MiB", "memory": "100MiB", "on_error": "skip", "skip": fl.Skip(steps=[100])},
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("is_used", [False, True])
def test_a_loader_may_be_built_of_what_another_lists(options: dict[str, Any], is_used: bool) -> None:
    loader: Any = fl.DataLoader(Numbers(), batch_size=4, **options)
    if is_used:
        list(loader)
    without = ("batch_size", "sampler", "drop_last", "batch_sampler", "dataset_kind")
    listed = {name: value for name, value in vars(loader).items() if name[0] != "_" and name not in without}
    other = type(loader)(**listed, batch_sampler=Chunks(range(20), 5, drop_last=False))
    assert [batch.shape[0] for batch in other] == [5] * 4
    assert other.cache == loader.cache
    assert other.memory == loader.memory
    assert other.seed == loader.seed
    assert other.on_error == loader.on_error
    other.close()
    loader.close()
    loader.published = ""
    assert "published" not in vars(loader)
