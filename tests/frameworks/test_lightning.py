"""The loader in the hands of Lightning's Trainer and Fabric."""

from __future__ import annotations

import copy
import logging
import os
import pathlib
import pickle
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

import foreload as fl
from tests import leftovers
from tests.frameworks.parts import Counting, Model, Regression

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

lightning = pytest.importorskip("lightning")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

WORKERS = ["threads", "processes"]


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self, fails: BaseException | None = None) -> None:
        super().__init__()
        self.model = Model()
        self.fails = fails
        self.validated = 0

    def training_step(self, batch: Any, number: int) -> Any:
        if number == 3 and self.fails is not None:
            raise self.fails
        batches = [batch] if "x" in batch else [part for part in batch.values() if part is not None]
        return sum(self.model(**part)["loss"] for part in batches)

    def validation_step(self, batch: Any, number: int, dataloader_idx: int = 0) -> None:
        self.validated += len(batch["x"])

    def test_step(self, batch: Any, number: int) -> None: ...

    def predict_step(self, batch: Any, number: int) -> Any:
        return batch["index"].tolist()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(**options: Any) -> Any:
    plain = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    if "callbacks" not in options:
        plain["enable_checkpointing"] = False
    return lightning.Trainer(**{**plain, "max_epochs": 2, "num_sanity_val_steps": 0, **options})


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    "arguments", [{"shuffle": True}, {"shuffle": True, "seed": 1}, {"persistent_workers": True}]
)
def test_a_fit_is_loaded_by_our_class(workers: Any, arguments: dict[str, Any]) -> None:
    module = Module()
    train = Counting(Regression(), batch_size=8, num_workers=2, workers=workers, name="train", **arguments)
    valid = Counting(Regression(20), batch_size=8, num_workers=2, workers=workers, name="valid")
    fit = trainer()
    fit.fit(module, train, valid)
    assert sorted(module.model.seen) == sorted([*range(64)] * 2)
    assert module.validated == 40
    assert fit.train_dataloader is train
    assert len(train.begun) == len(valid.begun) == 2
    assert train.stats()["samples"] == 128
    assert not leftovers.threads()
    train.close()


def test_cache_and_on_error_work_in_a_fit() -> None:
    module = Module()
    data = Regression(bad=frozenset({3, 50}))
    loader: Any = fl.DataLoader(data, batch_size=8, shuffle=True, seed=2, cache="1MiB", on_error="skip")
    trainer(max_epochs=3).fit(module, loader)
    assert sorted(module.model.seen) == sorted([i for i in range(64) if i not in (3, 50)] * 3)
    assert loader.stats()["cache"]["hits"] == 2 * 62
    assert {error.index for error in loader.errors} == {3, 50}
    assert loader.state_dict()["epoch"] == 2
    loader.close()


def test_a_loader_that_lightning_rebuilds_is_the_same_loader() -> None:
    data = Regression(40, bad=frozenset({3}))
    loader: Any = fl.DataLoader(data, batch_size=8, cache="1MiB", on_error="skip", seed=1, max_errors=9)
    predict = trainer()
    said = predict.predict(Module(), loader)
    assert sorted(index for batch in said for index in batch) == [*range(3), *range(4, 40)]
    rebuilt = predict.predict_dataloaders
    assert rebuilt is not loader
    assert type(rebuilt) is fl.DataLoader
    assert rebuilt._fl_auto_workers
    assert not rebuilt._fl_prefetch_given
    assert (rebuilt.on_error, rebuilt.seed, rebuilt.max_errors) == ("skip", 1, 9)
    assert loader.stats()["samples"] == 39
    assert loader.stats()["cache"]["misses"] == 40
    assert [error.index for error in loader.errors] == [3]


@pytest.mark.parametrize("given", [{}, {"num_workers": "auto"}, {"num_workers": 2}])
def test_a_loader_of_a_hook_is_rebuilt_as_it_was_given(given: Any) -> None:
    class Hooked(Module):
        def predict_dataloader(self) -> Any:
            return fl.DataLoader(Regression(40), batch_size=8, cache="1MiB", workers="threads", **given)

    predict = trainer()
    assert sorted(index for batch in predict.predict(Hooked()) for index in batch) == list(range(40))
    rebuilt = predict.predict_dataloaders
    assert type(rebuilt) is fl.DataLoader
    assert rebuilt._fl_auto_workers == (given.get("num_workers", "auto") == "auto")
    assert rebuilt.stats()["samples"] == rebuilt.stats()["cache"]["misses"] == 40


def test_overfitting_rebuilds_the_loader_without_its_order() -> None:
    module = Module()
    loader: Any = fl.DataLoader(Regression(), batch_size=8, shuffle=True, seed=1, cache="1MiB")
    fit = trainer(overfit_batches=3)
    fit.fit(module, loader)
    assert module.model.seen == [*range(24)] * 2
    assert type(fit.train_dataloader) is fl.DataLoader
    assert fit.train_dataloader._fl_auto_workers
    assert loader.stats()["cache"]["hits"] > 0


def test_a_fit_goes_on_from_a_checkpoint_in_the_middle_of_an_epoch(tmp_path: pathlib.Path) -> None:
    def fit(checkpoint: Any = None) -> Any:
        module = Module()
        saving = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1)
        loader = fl.DataLoader(Regression(), batch_size=8, shuffle=True, seed=3, num_workers=2)
        trainer(callbacks=[saving]).fit(module, loader, ckpt_path=checkpoint)
        return module.model.seen

    whole = fit()
    assert fit(tmp_path / "epoch=0-step=3.ckpt") == whole[3 * 8 :]
    assert fit(tmp_path / "epoch=1-step=13.ckpt") == whole[13 * 8 :]


OTHERS: dict[str, Any] = {
    "samples": (Regression(30), {"shuffle": True}),
    "sampler": (Regression(), {"shuffle": False}),
    "batches": (Regression(), {"batch_sampler": BatchSampler(SequentialSampler(range(40)), 5, False)}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_with_another_loader_an_epoch_begins_anew_as_with_torchs(other: str, tmp_path: pathlib.Path) -> None:
    dataset, options = OTHERS[other]

    def fit(kind: Any, folder: str, checkpoint: Any = None, **arguments: Any) -> Any:
        lightning.seed_everything(3, verbose=False)
        module = Module()
        saving = lightning.pytorch.callbacks.ModelCheckpoint(
            tmp_path / folder, every_n_train_steps=1, save_top_k=-1
        )
        arguments = {"dataset": Regression(), "shuffle": True, **arguments}
        if "batch_sampler" in arguments:
            del arguments["shuffle"]
        else:
            arguments["batch_size"] = 8
        trainer(callbacks=[saving]).fit(module, kind(num_workers=0, **arguments), ckpt_path=checkpoint)
        return module.model.seen

    fit(DataLoader, "stock")
    expected = fit(DataLoader, "stock", tmp_path / "stock" / "epoch=1-step=11.ckpt", dataset=dataset, **options)
    fit(fl.DataLoader, "ours")
    with pytest.warns(
        UserWarning, match="does not fit the loader, so its epoch begins anew: the state is of a loader with"
    ):
        seen = fit(fl.DataLoader, "ours", tmp_path / "ours" / "epoch=1-step=11.ckpt", dataset=dataset, **options)
    assert seen == expected
    loader = fl.DataLoader(Regression(), batch_size=8, shuffle=True)
    with pytest.raises(ValueError, match="but this one has"):
        fl.DataLoader(dataset, **options).load_state_dict(loader.state_dict())


ENDS: dict[str, Any] = {
    "whole": ({}, None, frozenset()),
    "few batches": ({"limit_train_batches": 3, "limit_val_batches": 2}, None, frozenset()),
    "few steps": ({"max_steps": 5}, None, frozenset()),
    "fast run": ({"fast_dev_run": 2}, None, frozenset()),
    "sanity check": ({"num_sanity_val_steps": 1, "limit_train_batches": 2}, None, frozenset()),
    "exception": ({}, RuntimeError("in the step"), frozenset()),
    "interrupt": ({}, KeyboardInterrupt(), frozenset()),
    "bad sample": ({}, None, frozenset({20})),
}


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", ENDS)
def test_nothing_outlives_a_fit_whatever_is_held(name: str, workers: Any, persistent: bool) -> None:
    options, fails, bad = ENDS[name]
    before = leftovers.processes()

    def loader(size: int = 64, bad: Any = frozenset()) -> Any:
        arguments: Any = {"num_workers": 2, "workers": workers, "persistent_workers": persistent}
        return fl.DataLoader(Regression(size, bad), batch_size=4, **arguments)

    fit, module, failure = trainer(**options), Module(fails), None
    train, valid = {"a": loader(bad=bad), "b": loader(20)}, [loader(), loader(12)]
    try:
        fit.fit(module, train, valid)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        failure = error  # its traceback holds what was there
    assert (failure is not None) == (fails is not None or bool(bad))
    assert not leftovers.threads()
    assert not leftovers.running(before)
    assert len([*train["b"]]) == 5
    for each in [*train.values(), *valid]:
        each.close()


@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle", "sequential"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_combined_loader_with_open_iterators_is_pickled(mode: Any, workers: int) -> None:
    from lightning.pytorch.utilities import CombinedLoader

    loaders = {
        name: fl.DataLoader(Regression(size), 4, num_workers=workers) for name, size in (("a", 16), ("b", 8))
    }
    combined = CombinedLoader(loaders, mode)
    batches = iter(combined)
    next(batches)
    for other in (pickle.loads(pickle.dumps(combined)), copy.deepcopy(combined)):
        assert len([*other]) == len(combined)
        other.reset()
    combined.reset()
    assert not leftovers.threads()


class Epochs(SequentialSampler):
    calls: list[int]

    def set_epoch(self, epoch: int) -> None:
        self.calls.append(epoch)


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("task", ["fit", "validate", "reload"])
def test_epochs_are_set_as_often_as_for_torchs_loader(task: str, in_batches: bool) -> None:
    def calls(make: Any) -> list[list[int]]:
        samplers = [Epochs(range(16)), Epochs(range(16))]
        loaders = []
        for sampler in samplers:
            sampler.calls = []
            batches = torch.utils.data.BatchSampler(sampler, 4, drop_last=False)
            options: Any = {"batch_sampler": batches} if in_batches else {"batch_size": 4, "sampler": sampler}
            loaders.append(make(Regression(16), **options))
        if task == "validate":
            trainer().validate(Module(), loaders[1], verbose=False)
        else:
            options = {"reload_dataloaders_every_n_epochs": 1} if task == "reload" else {}
            trainer(max_epochs=3, **options).fit(Module(), *loaders)
        return [sampler.calls for sampler in samplers]

    assert calls(fl.DataLoader) == calls(DataLoader)


def test_fabric_moves_batches_of_ours() -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    loader: Any = fl.DataLoader(Regression(), batch_size=8, shuffle=True, seed=1, cache="1MiB")
    ready = fabric.setup_dataloaders(loader)
    epochs = [torch.cat([batch["index"] for batch in ready]).tolist() for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [[*range(64)]] * 2
    assert epochs[0] != epochs[1]
    assert loader.stats()["cache"]["hits"] == 64


def _fit_rank(rank: int, port: int, folder: str, options: dict[str, Any], adapts: bool) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_RANK=str(rank), NODE_RANK="0")
    torch.set_num_threads(1)
    module = Module()
    loader: Any = fl.DataLoader(Regression(22), batch_size=4, cache=fl.Cache("1MiB", share=False), **options)
    fit = trainer(strategy="ddp", devices=2, use_distributed_sampler=adapts)
    fit.fit(module, loader)
    mine = fit.train_dataloader
    facts = (type(mine) is fl.DataLoader, mine is loader, mine._fl_auto_workers, mine._fl_prefetch_given)
    torch.save((module.model.seen, facts, loader.stats()["samples"]), f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("options", "adapts"),
    [({"shuffle": True}, True), ({"shuffle": True, "seed": 1}, True), ({"shuffle": True, "seed": 1}, False)],
)
def test_each_rank_of_a_fit_gets_its_part_once(options: Any, adapts: bool, tmp_path: pathlib.Path) -> None:
    port = 20_000 + os.getpid() % 20_000
    mp.start_processes(_fit_rank, (port, str(tmp_path), options, adapts), nprocs=2, start_method="forkserver")
    (mine, facts, samples), (theirs, other_facts, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for epoch in range(2):
        parts = [seen[epoch * 11 : epoch * 11 + 11] for seen in (mine, theirs)]
        assert sorted(parts[0] + parts[1]) == list(range(22))
    assert facts == other_facts == (True, not adapts, True, False)
    if not adapts:  # the order of all ranks is that of the seed
        alone: Any = fl.DataLoader(list(range(22)), shuffle=True, seed=1)
        assert [index for pair in zip(mine[:11], theirs[:11], strict=True) for index in pair] == [*map(int, alone)]
    assert samples == 22
