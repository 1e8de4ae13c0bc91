"""The loader after ``accelerator.prepare``, alone and on two ranks."""

from __future__ import annotations

import os
import pathlib
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

import foreload as fl
from tests import leftovers
from tests.frameworks.parts import Counting, Model, Regression

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

accelerate = pytest.importorskip("accelerate")

WORKERS = ["threads", "processes"]


def prepared(loader: Any, **options: Any) -> Any:
    configuration = accelerate.utils.DataLoaderConfiguration(**options)
    return accelerate.Accelerator(cpu=True, dataloader_config=configuration).prepare(loader)


def indices(loader: Any) -> list[list[int]]:
    return [batch["index"].tolist() for batch in loader]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_model_is_trained_with_batches_of_ours(workers: Any) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    model = Model()
    own = Counting(Regression(), batch_size=8, shuffle=True, num_workers=2, workers=workers, name="mine")
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), own)
    for _ in range(2):
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
    assert sorted(accelerator.unwrap_model(model).seen) == sorted([*range(64)] * 2)
    assert len(loader) == 8
    assert isinstance(loader, fl.DataLoader)
    assert type(loader.base_dataloader) is Counting
    assert len(loader.base_dataloader.begun) == 2
    assert own.stats()["samples"] == loader.stats()["samples"] == 128
    assert not leftovers.threads()


@pytest.mark.filterwarnings("error:this version of accelerate")
def test_a_loader_keeps_its_own_arguments_where_its_class_was_put_in_the_place_of_torchs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a script does that says ``torch.utils.data.DataLoader = foreload.DataLoader`` before its imports."""
    monkeypatch.setattr(accelerate.data_loader, "DataLoader", fl.DataLoader)
    own = fl.DataLoader(Regression(), batch_size=8, shuffle=True, on_error="skip", seed=3)
    expected = indices(fl.DataLoader(Regression(), batch_size=8, shuffle=True, seed=3))
    loader = prepared(own)
    assert loader.base_dataloader.on_error == "skip"
    assert indices(loader) == expected
    assert isinstance(prepared(DataLoader(Regression(), batch_size=8)), DataLoader)


ARGUMENTS: dict[str, Any] = {
    "in order": {"batch_size": 8},
    "shuffled": {"batch_size": 8, "shuffle": True},
    "drop_last": {"batch_size": 7, "shuffle": True, "drop_last": True},
    "workers": {"batch_size": 8, "shuffle": True, "num_workers": 2, "prefetch_factor": 3},
    "persistent": {"batch_size": 8, "num_workers": 1, "persistent_workers": True},
    "batch sampler": {"batch_sampler": [[1, 2], [60]]},
}


@pytest.mark.parametrize("seedable", [False, True])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_batches_are_those_of_torchs_loader(name: str, seedable: bool) -> None:
    def run(make: Any) -> Any:
        torch.manual_seed(5)
        loader = prepared(make(Regression(), **ARGUMENTS[name]), use_seedable_sampler=seedable)
        epochs = [indices(loader) for _ in range(2)]
        loader = accelerate.skip_first_batches(loader, 1)
        assert isinstance(loader, make)
        epochs.append(indices(loader))
        if persistent := getattr(loader.base_dataloader, "close", None):
            persistent()
        return epochs, torch.get_rng_state().tolist()

    assert run(fl.DataLoader) == run(DataLoader)


def test_what_torch_has_not_works_too() -> None:
    data = Regression(bad=frozenset({3, 50}))
    options: Any = {"cache": "1MiB", "on_error": "replace", "device": "cpu"}
    own: Any = fl.DataLoader(data, batch_size=8, shuffle=True, seed=2, **options)
    loader = prepared(own)
    assert loader.base_dataloader._fl_auto_workers
    for _ in range(2):
        assert sum(len(batch) for batch in indices(loader)) == 64
    assert own.stats()["cache"]["hits"] >= 62
    assert {error.index for error in own.errors} == {3, 50}
    assert "samples" in str(own.report())
    skipping = accelerate.skip_first_batches(loader, 3)
    assert len(indices(skipping)) == 5
    assert skipping.on_error == "replace"
    assert own.stats()["batches"] == 8 + 8 + 5
    plain: Any = accelerate.skip_first_batches(fl.DataLoader(data, batch_size=8, cache="1MiB", on_error="skip"), 6)
    assert (type(plain), plain.on_error) == (fl.DataLoader, "skip")
    assert indices(plain) == [[48, 49, *range(51, 56)], [*range(56, 64)]]


def test_a_state_goes_on_where_the_loop_was() -> None:
    def make() -> Any:
        return prepared(fl.DataLoader(Regression(), batch_size=8, shuffle=True, seed=6, num_workers=2))

    loader = make()
    whole = [indices(loader) for _ in range(4)]
    again = make()
    indices(again)
    batches, taken = iter(again), []
    for _ in range(3):
        taken.append(next(batches)["index"].tolist())
        state = pickle.loads(pickle.dumps(again.state_dict()))
    batches.close()
    assert taken == whole[1][:3]
    other = make()
    other.load_state_dict(state)
    assert indices(other) == whole[1][3:]
    assert [indices(other), indices(other)] == whole[2:]  # though Accelerate counts epochs from 0 again
    other.set_epoch(1)
    assert [indices(other), indices(other)] == whole[1:3]
    assert not leftovers.threads()


@pytest.fixture
def torchdata() -> None:
    pytest.importorskip("torchdata.stateful_dataloader")  # which Accelerate asks for


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("torchdata")
def test_a_checkpoint_has_the_state_of_a_stateful_loader(workers: int, tmp_path: pathlib.Path) -> None:
    configuration = accelerate.utils.DataLoaderConfiguration(use_stateful_dataloader=True)

    def make(folder: pathlib.Path | None, make: Any = fl.DataLoader, **options: Any) -> tuple[Any, Any]:
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=configuration)
        loader = accelerator.prepare(
            make(Regression(), batch_size=8, shuffle=True, num_workers=workers, **options)
        )
        if folder is not None:
            accelerator.load_state(str(folder))
        return accelerator, loader

    accelerator, loader = make(None, seed=4)
    assert type(loader.base_dataloader) is fl.DataLoader
    whole = [indices(loader) for _ in range(2)]
    accelerator, loader = make(None, seed=4)
    taken = indices(loader)
    batches = iter(loader)
    taken += [next(batches)["index"].tolist() for _ in range(3)]
    accelerator.save_state(str(tmp_path / "middle"))
    batches.close()
    _, again = make(tmp_path / "middle", seed=4)
    assert taken == [*whole[0], *whole[1][:3]]
    assert indices(again) == whole[1][3:]
    accelerator, loader = make(None, seed=4)
    indices(loader)
    accelerator.save_state(str(tmp_path / "end"))
    assert indices(make(tmp_path / "end", seed=4)[1]) == whole[1]
    # Torch's loaders still become torchdata's.
    _, theirs = make(None, DataLoader)
    assert type(theirs.base_dataloader).__name__ == "StatefulDataLoader"
    assert not leftovers.threads()


def test_a_loop_that_is_left_leaves_nothing() -> None:
    before = leftovers.processes()
    for workers in WORKERS:
        loader = prepared(fl.DataLoader(Regression(), batch_size=8, num_workers=2, workers=workers))
        for _ in loader:
            break
        with pytest.raises(ValueError, match="in the loop"):
            _fail(loader)
    assert not leftovers.threads()
    assert not leftovers.running(before)


def _fail(loader: Any) -> None:
    for _ in loader:
        raise ValueError("in the loop")


def test_the_last_batch_of_an_accumulation_is_known() -> None:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    loader = accelerator.prepare(fl.DataLoader(Regression(), batch_size=8))
    steps = []
    for _ in loader:
        with accelerator.accumulate():
            steps.append(accelerator.sync_gradients)
    assert steps == [False, False, True, False, False, True, False, True]


def test_a_prepared_loader_is_pickled() -> None:
    accelerate.state.GradientState._reset_state()  # which remembers loops that were left early by weak references
    loader = prepared(fl.DataLoader(Regression(), batch_size=8, shuffle=True, seed=1, cache="1MiB"))
    other = pickle.loads(pickle.dumps(loader))
    assert type(other.base_dataloader) is fl.DataLoader
    assert indices(other) == indices(loader)


class Epochs(SequentialSampler):
    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.calls: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.calls.append(epoch)


def test_epochs_are_set_as_often_as_for_torchs_loader() -> None:
    def calls(make: Any) -> list[int]:
        sampler = Epochs(range(16))
        loader = prepared(make(Regression(16), batch_size=4, sampler=sampler))
        for _ in range(3):
            indices(loader)
        loader.set_epoch(9)
        indices(accelerate.skip_first_batches(loader, 2))
        return sampler.calls

    assert calls(fl.DataLoader) == calls(DataLoader)


class Numbers(IterableDataset[Any]):
    def __len__(self) -> int:
        return 22

    def __iter__(self) -> Iterator[Any]:
        for index in range(22):
            yield {"index": torch.tensor(index)}


RANKS: dict[str, Any] = {
    "map": (Regression(22), {"batch_size": 4, "shuffle": True}, {}),
    "drop_last": (Regression(22), {"batch_size": 4, "shuffle": True, "drop_last": True}, {}),
    "split batches": (Regression(22), {"batch_size": 4}, {"split_batches": True}),
    "uneven": (Regression(22), {"batch_size": 4}, {"even_batches": False}),
    "dispatched": (Regression(22), {"batch_size": 4, "shuffle": True}, {"dispatch_batches": True}),
    "seedable": (Regression(22), {"batch_size": 4, "shuffle": True}, {"use_seedable_sampler": True}),
    "iterable": (Numbers(), {"batch_size": 4}, {"dispatch_batches": False}),
    "iterable dispatched": (Numbers(), {"batch_size": 4}, {}),
}


class Wholes(Regression):
    def __getitem__(self, index: int) -> Any:
        return {"index": torch.tensor(index)}


def stream(**ranks: int) -> Any:
    return fl.Stream(Wholes(24), seed=1, buffer=8, **ranks)


# In batches of 4 on two ranks: full groups of batches, and a last one with a single batch.
DISPATCHED: list[tuple[Any, dict[str, Any]]] = [
    (Regression(22), {"shuffle": True, "seed": 8}),
    (Regression(20), {"shuffle": True, "seed": 8, "drop_last": True}),
    (Numbers(), {}),
]


def _resumed(data: Any, **arguments: Any) -> list[Any]:
    """The batches of an epoch, those that are left after each state that was taken in it, and these states."""

    def make() -> Any:
        loader = prepared(fl.DataLoader(data, batch_size=4, num_workers=0, **arguments), dispatch_batches=True)
        loader.use_stateful_dataloader = True  # as an option sets it where torchdata is installed
        return loader

    loader = make()
    taken, states = [], []
    for batch in loader:
        taken.append(batch["index"].tolist())
        states.append(pickle.loads(pickle.dumps(loader.state_dict())))
    rests = []
    for state in states[:-1]:
        again = make()
        again.load_state_dict(state)
        rests.append(indices(again))
    states.append(loader.state_dict())
    return [taken, rests, states]


def _load(rank: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank))
    os.environ.update(WORLD_SIZE="2", OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, (data, arguments, options) in RANKS.items():
        for make in (fl.DataLoader, DataLoader):
            torch.manual_seed(3)
            loader = prepared(make(data, **arguments), **options)
            epochs = [indices(loader) for _ in range(2)]
            loader.set_epoch(1)
            epochs.append(indices(accelerate.skip_first_batches(loader, 1)))
            results[name, make is DataLoader] = epochs
            assert type(loader.base_dataloader) is make
    for options in ({"dispatch_batches": False}, {}):
        split = prepared(fl.DataLoader(stream(), batch_size=4), **options)
        whole = prepared(DataLoader(stream(num_replicas=1, rank=0), batch_size=4), **options)
        assert indices(split) == indices(whole)
        assert len(split) == len(whole)
    own = fl.DataLoader(Regression(22), batch_size=4, shuffle=True, seed=8, cache=fl.Cache("1MiB", share=False))
    loader = prepared(own)
    epochs = [indices(loader) for _ in range(3)]
    skipping = accelerate.skip_first_batches(loader, 1)
    skipping.set_epoch(1)
    results["seeded"] = [*epochs, indices(skipping)], own.stats()["samples"]
    results["resumed"] = [_resumed(data, **options) for data, options in DISPATCHED]
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_ranks_get_what_torchs_loader_would_give_them(tmp_path: pathlib.Path) -> None:
    port = 20_000 + os.getpid() % 20_000
    mp.start_processes(_load, (port, str(tmp_path)), nprocs=2, start_method="forkserver")
    mine, theirs = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name in RANKS:
        for result in (mine, theirs):
            assert result[name, False] == result[name, True], name
    (epochs, samples), (others, _) = mine["seeded"], theirs["seeded"]
    order = [int(index) for index in fl.DataLoader(list(range(22)), shuffle=True, seed=8)]  # type: ignore[arg-type]
    assert epochs[0][0] + others[0][0] == order[:8]  # shared by Accelerate alone, not by the loader too
    for first, second in zip(epochs[:3], others[:3], strict=True):
        assert {index for batch in [*first, *second] for index in batch} == set(range(22))
    assert (epochs[3], others[3]) == (epochs[1][1:], others[1][1:])
    assert samples == 3 * 12 + 8
    for (_, _, states), (_, _, others) in zip(mine["resumed"], theirs["resumed"], strict=True):
        assert states == others  # of which Accelerate keeps those of the rank that writes last
    for result in (mine, theirs):
        for (data, _), (taken, rests, _) in zip(DISPATCHED, result["resumed"], strict=True):
            assert len(rests) == len(taken) - 1, data
            # (The last batch is filled up with samples of the first that a run has loaded.)
            assert [rest[:-1] for rest in rests] == [taken[done:-1] for done in range(1, len(taken))], data
            assert all(len(rest) == len(taken) - done for done, rest in enumerate(rests, 1)), data
