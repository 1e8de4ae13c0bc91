"""The loader in the Trainer of ``transformers``, which makes loaders itself."""

from __future__ import annotations

import pathlib
from typing import Any, ClassVar

import pytest
import torch

import foreload as fl
from tests import leftovers
from tests.frameworks.parts import Counting, Model, Regression

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

transformers = pytest.importorskip("transformers")


class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
    """With the lines that docs/frameworks.md gives."""

    options: ClassVar[dict[str, Any]] = {}

    def get_train_dataloader(self) -> Any:
        return fl.from_torch(super().get_train_dataloader(), **self.options)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return fl.from_torch(super().get_eval_dataloader(eval_dataset), **self.options)


class Own(transformers.Trainer):  # type: ignore[misc, name-defined]
    """With a loader of ours that Accelerate prepares."""

    options: ClassVar[dict[str, Any]] = {}

    def get_train_dataloader(self) -> Any:
        self.own: Any = Counting(self.train_dataset, batch_size=8, name="train", **self.options)
        return self.accelerator.prepare(self.own)


def trained(kind: Any, folder: pathlib.Path, data: Any = None, resume: Any = None, **arguments: Any) -> Any:
    torch.manual_seed(0)
    model = Model()
    plain = {"num_train_epochs": 2, "save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True}
    said = transformers.TrainingArguments(output_dir=str(folder), logging_strategy="no", **{**plain, **arguments})
    trainer = kind(model=model, args=said, train_dataset=data or Regression(), eval_dataset=Regression(20))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize(
    "arguments",
    [{}, {"dataloader_num_workers": 2}, {"dataloader_drop_last": True, "per_device_train_batch_size": 7}],
)
def test_batches_are_those_of_the_trainers_own_loader(arguments: Any, tmp_path: pathlib.Path) -> None:
    theirs = trained(transformers.Trainer, tmp_path, **arguments)
    ours = trained(Trainer, tmp_path, **arguments)
    assert ours.model.seen == theirs.model.seen
    loader = ours.callback_handler.train_dataloader
    assert type(loader.base_dataloader) is fl.DataLoader
    assert loader.stats()["samples"] == len(ours.model.seen)
    assert ours.evaluate()["eval_loss"] == theirs.evaluate()["eval_loss"]
    assert type(ours.callback_handler.eval_dataloader.base_dataloader) is fl.DataLoader
    assert not leftovers.threads()


def test_cache_workers_and_on_error_work(tmp_path: pathlib.Path) -> None:
    class Cached(Trainer):
        options: ClassVar = {"cache": "1MiB", "on_error": "skip", "num_workers": "auto"}

    trainer = trained(Cached, tmp_path, Regression(bad=frozenset({9})))
    loader = trainer.callback_handler.train_dataloader
    assert sorted(trainer.model.seen) == sorted([i for i in range(64) if i != 9] * 2)
    assert loader.stats()["cache"]["hits"] == 63
    assert [error.index for error in loader.errors] == [9, 9]


@pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle": True, "seed": 3}])
def test_a_loader_of_ours_is_prepared_and_goes_on_from_a_checkpoint(options: Any, tmp_path: pathlib.Path) -> None:
    class Seeded(Own):
        pass

    Seeded.options = options
    saving = {"save_strategy": "steps", "save_steps": 5, "num_train_epochs": 3, "save_total_limit": None}
    whole = trained(Seeded, tmp_path, **saving)
    assert len(whole.own.begun) == 3
    assert whole.own.stats()["samples"] == 3 * 64
    again = trained(Seeded, tmp_path, resume=str(tmp_path / "checkpoint-10"), **saving)
    assert type(again.callback_handler.train_dataloader.base_dataloader) is Counting
    if "seed" in options:
        assert again.model.seen == whole.model.seen[10 * 8 :]
    else:
        assert sorted(again.model.seen[-64:]) == list(range(64))


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_nothing_outlives_training_that_stops_early(workers: Any, tmp_path: pathlib.Path) -> None:
    class Stopping(Own):
        options: ClassVar = {"num_workers": 2, "workers": workers}

        def compute_loss(self, *arguments: Any, **options: Any) -> Any:
            if self.fails and self.state.global_step == 3:
                raise RuntimeError("in the step")
            return super().compute_loss(*arguments, **options)

    before = leftovers.processes()
    Stopping.fails = False
    trained(Stopping, tmp_path, max_steps=3)
    assert not leftovers.threads()
    Stopping.fails = True
    with pytest.raises(RuntimeError, match="in the step"):
        trained(Stopping, tmp_path)
    assert not leftovers.threads()
    assert not leftovers.running(before)
