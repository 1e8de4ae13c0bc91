"""The loader in the hands of Lightning, Accelerate and the Hugging Face Trainer, by the real libraries."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, DistributedSampler, TensorDataset

import foreload as fl

pytestmark = pytest.mark.slow

WORKERS = ["threads", "processes"]


class Regression(Dataset[Any]):
    def __init__(self, size: int = 64) -> None:
        self.x = torch.linspace(-1, 1, size)[:, None]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index], "labels": 2 * self.x[index] + 1, "index": index}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[int] = []

    def forward(self, x: Any, labels: Any, index: Any = None) -> Any:
        if self.training:
            self.seen += index.tolist()
        loss = torch.nn.functional.mse_loss(self.layer(x), labels)
        return {"loss": loss}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    "arguments", [{"shuffle": True}, {"shuffle": True, "seed": 1}, {"persistent_workers": True}]
)
def test_lightning_fits(workers: Any, arguments: dict[str, Any], tmp_path: pathlib.Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()
            self.validated = 0

        def training_step(self, batch: Any, number: int) -> Any:
            return self.model(**batch)["loss"]

        def validation_step(self, batch: Any, number: int) -> None:
            self.validated += len(batch["x"])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        num_sanity_val_steps=0,
    )
    train = fl.DataLoader(Regression(), batch_size=8, num_workers=2, workers=workers, **arguments)
    valid = fl.DataLoader(Regression(20), batch_size=8, num_workers=2, workers=workers)
    trainer.fit(module, train, valid)
    assert sorted(module.model.seen) == sorted([*range(64)] * 2)
    assert module.validated == 40
    assert isinstance(trainer.train_dataloader, fl.DataLoader)
    train.close()


@pytest.mark.filterwarnings("ignore")
def test_lightning_goes_on_from_a_checkpoint_in_the_middle_of_an_epoch(tmp_path: pathlib.Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, number: int) -> Any:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    def fit(checkpoint: Any = None) -> Any:
        module = Module()
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[
                lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1)
            ],
        )
        loader = fl.DataLoader(Regression(), batch_size=8, shuffle=True, seed=3, num_workers=2)
        trainer.fit(module, loader, ckpt_path=checkpoint)
        return module.model.seen

    whole = fit()
    assert fit(tmp_path / "epoch=0-step=3.ckpt") == whole[3 * 8 :]
    assert fit(tmp_path / "epoch=1-step=13.ckpt") == whole[13 * 8 :]


@pytest.mark.parametrize("workers", WORKERS)
def test_accelerate_prepares(workers: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = Model()
    loader: Any = fl.DataLoader(Regression(), batch_size=8, shuffle=True, num_workers=2, workers=workers)
    model, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
    for _ in range(2):
        for batch in prepared:
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    assert sorted(accelerator.unwrap_model(model).seen) == sorted([*range(64)] * 2)
    assert len(prepared) == 8


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", WORKERS)
def test_the_hugging_face_trainer_trains(workers: Any, tmp_path: pathlib.Path) -> None:
    transformers = pytest.importorskip("transformers")

    class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
        def get_train_dataloader(self) -> Any:
            return fl.DataLoader(self.train_dataset, batch_size=8, shuffle=True, num_workers=2, workers=workers)

    model = Model()
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=Regression()).train()
    assert sorted(model.seen) == sorted([*range(64)] * 2)


@pytest.mark.parametrize("workers", WORKERS)
def test_each_rank_has_its_share_in_each_epoch(workers: Any) -> None:
    data = TensorDataset(torch.arange(50))
    shares = []
    for rank in range(4):
        sampler: Any = DistributedSampler(data, 4, rank, seed=5)
        loader: Any = fl.DataLoader(data, batch_size=4, sampler=sampler, num_workers=2, workers=workers)
        epochs = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs.append(torch.cat([batch[0] for batch in loader]).tolist())
            assert epochs[-1] == list(sampler)
        shares.append(epochs)
    for epoch in range(2):
        assert {index for share in shares for index in share[epoch]} == set(range(50))
