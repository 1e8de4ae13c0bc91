"""Loaders that a framework builds from one of ours, by copies of how frameworks do that."""

from __future__ import annotations

import copy
import inspect
import io
import json
import pickle
import sys
import types
import warnings
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler, TensorDataset

import foreload as fl
from tests.frameworks.parts import BUILDER, Counting, Regression, as_lightning


@pytest.fixture(params=["accelerate.data_loader", "ray.train.torch.train_loop_utils"])
def builder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for a framework's module that builds loaders of torch's class."""
    module = types.ModuleType(request.param)
    exec(BUILDER, vars(module))
    monkeypatch.setitem(sys.modules, request.param, module)
    return module


OPTIONS: dict[str, Any] = {
    "workers": "threads",
    "seed": 4,
    "cache": fl.Cache("1MiB"),
    "transform": copy.copy,
    "device": "cpu",
    "device_depth": 3,
    "device_transform": copy.copy,
    "memory": "1GiB",
    "on_error": "skip",
    "max_errors": 7,
    "max_restarts": 1,
    "snapshot_every_n_steps": 2,
    "skip": fl.Skip(steps=[1]),
    "distributed": False,
    "pin_memory": False,
    "drop_last": True,
    "timeout": 50,
    "in_order": False,
    "generator": torch.Generator(),
}


def test_no_option_of_ours_is_missing_here() -> None:
    ours, theirs = (inspect.signature(kind).parameters.keys() for kind in (fl.DataLoader, DataLoader))
    assert ours - theirs <= OPTIONS.keys() | {"group"}


@pytest.mark.slow
def test_a_group_survives_and_leaves_the_samples_to_the_sampler(builder: Any) -> None:
    loader: Any = fl.DataLoader(Regression(), batch_size=8, shuffle=True, seed=1, group=(1, 2))
    assert len(loader) == 4
    for make in (as_lightning, builder.prepare_data_loader):
        other = make(loader, SequentialSampler(range(64)))
        again = make(other, SequentialSampler(range(64)))
        assert other.group == again.group == (1, 2)
        assert len(list(other)) == len(list(again)) == 8


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_survives(builder: Any, option: str) -> None:
    needed = {"device": "cpu"} if option == "device_transform" else {}
    loader: Any = fl.DataLoader(Regression(), batch_size=8, **{option: OPTIONS[option], **needed})
    sampler = SequentialSampler(range(64))
    for other in (as_lightning(loader, sampler), builder.prepare_data_loader(loader, sampler)):
        assert type(other) is fl.DataLoader
        assert getattr(other, option) == getattr(loader, option)
        assert other.sampler is sampler
        assert other.batch_size == 8


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("given", "workers", "ahead"),
    [
        ({}, "auto", None),
        ({"num_workers": "auto", "prefetch_factor": 3}, "auto", 3),
        ({"num_workers": 3}, 3, None),
        ({"num_workers": 3, "prefetch_factor": 2}, 3, 2),
        ({"num_workers": 0}, 0, None),
        ({"num_workers": 2, "persistent_workers": True}, 2, None),
    ],
)
def test_the_number_of_workers_stays_as_it_was_given(builder: Any, given: Any, workers: Any, ahead: Any) -> None:
    loader: Any = fl.DataLoader(Regression(), batch_size=8, workers="threads", **given)
    sampler = SequentialSampler(range(64))
    batches = BatchSampler(sampler, 8, drop_last=False)
    copies = [as_lightning(loader, sampler), builder.prepare_data_loader(loader, sampler)]
    copies += [
        builder.accelerate(loader, batches),
        builder.accelerate(builder.accelerate(loader, batches), batches),
    ]
    for other in copies:
        assert other._fl_auto_workers == (workers == "auto")
        assert other.num_workers == loader.num_workers
        assert other._fl_prefetch_given == (ahead is not None)
        assert other.prefetch_factor == loader.prefetch_factor
        assert other.persistent_workers == loader.persistent_workers
        assert "as requested" in other.stats()["workers"]["why"] or workers == "auto"


def test_auto_may_have_come_to_no_workers_at_all(builder: Any) -> None:
    loader: Any = fl.DataLoader(Regression(), batch_size=8)
    loader._fl_crew.set_count(0)
    batches = BatchSampler(SequentialSampler(range(64)), 8, drop_last=False)
    other = builder.accelerate(loader, batches)  # torch refuses num_workers=0 with a prefetch_factor
    assert other._fl_auto_workers
    assert sum(len(batch["index"]) for batch in other) == 64


def test_the_batches_are_made_by_our_class(builder: Any) -> None:
    data = Regression(64, bad=frozenset({5, 17}))
    options: dict[str, Any] = {"on_error": "skip", "cache": "1MiB", "num_workers": 2, "workers": "threads"}
    loader = Counting(data, batch_size=8, name="mine", **options)
    other = builder.accelerate(loader, BatchSampler(RandomSampler(data), 8, drop_last=False))
    assert type(other) is Counting
    assert other.name == "mine"
    for _ in range(2):
        seen = torch.cat([batch["index"] for batch in other]).tolist()
        assert sorted(seen) == sorted(set(range(64)) - {5, 17})
    assert other.begun == ["ThreadEpoch", "ThreadEpoch"]
    # The loader that the user still has tells of it all.
    assert loader.stats()["samples"] == 124
    assert loader.stats()["cache"]["hits"] == 62
    assert {error.index for error in loader.errors} == {5, 17}
    assert "124" in str(loader.report()) or loader.report() is not None
    skipping = builder.accelerate(other, BatchSampler(SequentialSampler(data), 8, drop_last=False))
    list(skipping)
    assert loader.stats()["cache"]["hits"] == 124


def test_torchs_own_loaders_stay_torchs(builder: Any) -> None:
    fl.DataLoader(range(3)).num_workers  # type: ignore[arg-type]
    assert builder.DataLoader is not DataLoader
    theirs = builder.accelerate(DataLoader(range(5), 2), BatchSampler(range(5), 2, drop_last=False))  # type: ignore[arg-type]
    assert type(theirs) is DataLoader
    assert isinstance(theirs, builder.DataLoader)
    assert issubclass(fl.DataLoader, builder.DataLoader)

    class Derived(builder.DataLoader):  # type: ignore[misc, name-defined]
        pass

    assert type(Derived(range(5))) is Derived


def test_a_number_that_a_user_copies_is_a_number() -> None:
    loader: Any = fl.DataLoader(Regression(), num_workers=3)
    other: Any = fl.DataLoader(Regression(), num_workers=loader.num_workers)
    assert not other._fl_auto_workers
    assert other.num_workers == 3
    assert other.recorder is not loader.recorder
    theirs = DataLoader(Regression(), num_workers=loader.num_workers)
    assert type(theirs) is DataLoader


class Served(Dataset[int]):
    """Counts the samples that it has given, which copies in workers would each begin anew."""

    served = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        self.served += 1
        return self.served


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_number_that_was_left_to_a_loader_is_left_to_the_one_that_copies_it(is_kept: bool) -> None:
    loader: Any = fl.DataLoader(Served())
    count, ahead = loader.num_workers, loader.prefetch_factor
    loader = loader if is_kept else None
    # As Opacus does it, with a collate_fn of its own.
    other: Any = fl.DataLoader(Served(), 4, num_workers=count, prefetch_factor=ahead, collate_fn=list)
    assert list(other) == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
    assert loader is None or other.recorder is not loader.recorder


def test_the_number_of_workers_is_pickled_as_an_int() -> None:
    loader: Any = fl.DataLoader(range(9), num_workers=2)  # type: ignore[arg-type]
    assert type(pickle.loads(pickle.dumps(loader.num_workers))) is int
    assert json.loads(json.dumps(loader.num_workers)) == 2
    list(loader)
    file = io.BytesIO()
    torch.save({"state": loader.state_dict(), "workers": loader.num_workers}, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=True)["workers"]) is int
    for other in (pickle.loads(pickle.dumps(loader)), copy.copy(loader), copy.deepcopy(loader)):
        assert other.num_workers.loader is other


def test_an_unknown_version_of_a_framework_is_warned_of(builder: Any) -> None:
    del builder.DataLoader
    loader: Any = fl.DataLoader(range(3))  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loader.num_workers
        loader.num_workers
    expected = int(not said) or [str(warning.message) for warning in said]
    assert expected == 1 or (len(expected) == 1 and "foreload.from_torch(prepared" in expected[0])  # type: ignore[arg-type]


def test_a_state_that_was_loaded_before_is_kept_or_missed_aloud(builder: Any) -> None:
    loader: Any = fl.DataLoader(range(12), batch_size=2, shuffle=True, seed=1, num_workers=0)  # type: ignore[arg-type]
    batches = iter(loader)
    next(batches)
    state, rest = loader.state_dict(), [batch.tolist() for batch in batches]
    again: Any = fl.DataLoader(range(12), batch_size=2, shuffle=True, seed=1, num_workers=0)  # type: ignore[arg-type]
    again.load_state_dict(state)
    same = builder.accelerate(again, again.batch_sampler)
    assert [batch.tolist() for batch in same] == rest
    again.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"call load_state_dict\(\) after that"):
        builder.accelerate(again, BatchSampler(SequentialSampler(range(12)), 2, drop_last=False))


class Shard(BatchSampler):
    """Every other batch of a batch sampler, as Accelerate's BatchSamplerShard has it."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Any:
        yield from islice(self.batch_sampler, 0, None, 2)


def test_the_epoch_that_a_framework_sets_holds(builder: Any) -> None:
    loader: Any = fl.DataLoader(list(range(12)), batch_size=3, shuffle=True, seed=1, num_workers=0)
    epochs = [[batch.tolist() for batch in loader] for _ in range(4)]
    for depth in range(3):
        first: Any = fl.DataLoader(list(range(12)), batch_size=3, shuffle=True, seed=1, num_workers=0)
        batches: Any = first.batch_sampler
        for _ in range(depth):
            batches = Shard(batches)
        other = builder.accelerate(first, batches)
        step = 2**depth
        assert [batch.tolist() for batch in other] == epochs[0][::step]
        assert [batch.tolist() for batch in other] == epochs[1][::step]
        keyed = other.batch_sampler if depth else other.batch_sampler.sampler
        keyed.set_epoch(3)
        assert [batch.tolist() for batch in other] == epochs[3][::step]
        keyed.set_epoch(3)  # again, as Accelerate does after a loop that was left early
        assert [batch.tolist() for batch in other] == epochs[3][::step]
        keyed.set_epoch(0)
        assert [batch.tolist() for batch in other] == epochs[0][::step]
        assert [batch.tolist() for batch in other] == epochs[1][::step]


class Epochs(SequentialSampler):
    """Counts calls of set_epoch."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.calls: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.calls.append(epoch)


def test_a_users_sampler_is_told_the_epoch_once_and_only_when_it_is_set(builder: Any) -> None:
    sampler = Epochs(range(6))
    loader: Any = fl.DataLoader(range(6), batch_size=2, sampler=sampler, seed=1)  # type: ignore[arg-type]
    for _ in range(3):
        list(loader)
    assert sampler.calls == []
    loader.set_epoch(7)
    assert sampler.calls == [7]
    for other in (as_lightning(loader, sampler), builder.accelerate(loader, loader.batch_sampler)):
        list(other)
        list(other)
    assert sampler.calls == [7]


STOCK: dict[str, Any] = {
    "plain": {"batch_size": 4},
    "shuffled": {"batch_size": 4, "shuffle": True, "drop_last": True},
    "generator": {"batch_size": 4, "shuffle": True, "generator": torch.Generator()},
    "workers": {"batch_size": 4, "num_workers": 2, "prefetch_factor": 3, "persistent_workers": True},
    "batch sampler": {"batch_sampler": [[0, 3], [5]]},
    "batch sampler of torch's": {"batch_sampler": BatchSampler(SequentialSampler(range(9)), 4, drop_last=True)},
    "unbatched": {"batch_size": None, "sampler": [3, 1]},
    "collate": {"batch_size": 4, "collate_fn": list},
}


@pytest.mark.parametrize("name", STOCK)
def test_from_torch_gives_the_same_batches(name: str) -> None:
    theirs: Any = DataLoader(range(10), **STOCK[name])  # type: ignore[arg-type]
    ours = fl.from_torch(theirs, **({"workers": "threads"} if name == "workers" else {}))
    assert type(ours) is fl.DataLoader
    assert (ours.num_workers, ours.prefetch_factor) == (theirs.num_workers, theirs.prefetch_factor)
    for _ in range(2):
        epochs = []
        for loader in (theirs, ours):
            torch.manual_seed(3)
            if theirs.generator is not None:
                theirs.generator.manual_seed(8)
            epochs.append([torch.as_tensor(batch).tolist() for batch in loader])
        assert epochs[0] == epochs[1]
    ours.close()


class Wrapper:
    """A wrapper like the one that Accelerate puts around a loader."""

    def __init__(self, loader: Any) -> None:
        self.base_dataloader = loader

    @property
    def __class__(self) -> Any:
        return type(self.base_dataloader)

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base_dataloader, name)


def test_from_torch_replaces_the_loader_that_accelerate_holds() -> None:
    prepared: Any = Wrapper(DataLoader(TensorDataset(torch.arange(6)), 2))
    assert fl.from_torch(prepared, cache="1MiB") is prepared
    assert type(prepared.base_dataloader) is fl.DataLoader
    assert prepared.cache is not None


def test_from_torch_takes_options_and_refuses_what_it_cannot_take() -> None:
    ours = fl.from_torch(DataLoader(range(6), 2), num_workers="auto", on_error="skip", batch_size=3)  # type: ignore[arg-type]
    assert (ours._fl_auto_workers, ours.on_error, ours.batch_size) == (True, "skip", 3)
    for wrong in (ours, [1], Dataset()):
        with pytest.raises(TypeError, match="loader must be a torch DataLoader that is not foreload's"):
            fl.from_torch(wrong)
