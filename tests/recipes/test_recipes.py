"""Ready-made loaders on real files, beside the stock loader with the same arguments."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, TensorDataset
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload import DataLoaderConfig, DataLoaderFactory, EfficientDataLoader, machine


def listed(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def flat(loader: Any) -> list[int]:
    return [sample for batch in listed(loader) for sample in batch]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("workers", [0, 2, "auto"])
@pytest.mark.parametrize("memory_efficient", [False, True])
def test_the_defaults_work_with_anything(workers: Any, memory_efficient: bool) -> None:
    config = DataLoaderConfig(batch_size=4, num_workers=workers, memory_efficient=memory_efficient)
    with EfficientDataLoader(list(range(10)), config) as loader:
        for _ in range(2):
            assert sorted(flat(loader)) == list(range(10))
    with EfficientDataLoader(Stream(), config) as stream:
        assert sorted(set(flat(stream))) == list(range(10))
    sampler = [3, 1, 2]
    for name, given in (("custom_sampler", sampler), ("custom_batch_sampler", [[3, 1], [2]])):
        chosen = DataLoaderConfig(batch_size=2, num_workers=workers, **{name: given})
        with EfficientDataLoader(list(range(10)), chosen) as loader:
            assert listed(loader) == [[3, 1], [2]]
    with EfficientDataLoader(
        list(range(4)), config, batch_sampler=BatchSampler(SequentialSampler(range(4)), 3, True)
    ) as own:
        assert listed(own) == [[0, 1, 2]]  # fmt: skip


def test_a_seed_gives_torchs_order_for_that_seed() -> None:
    config = DataLoaderConfig(batch_size=3, num_workers=0, generator_seed=5, drop_last=True)
    theirs = TorchDataLoader(
        range(20), 3, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(5)
    )
    ours, again = (EfficientDataLoader(range(20), config) for _ in range(2))  # type: ignore[arg-type]
    expected = [listed(theirs) for _ in range(3)]
    assert [listed(ours) for _ in range(3)] == [listed(again) for _ in range(3)] == expected
    assert listed(EfficientDataLoader(range(20), config, seed=1)) != expected[0]  # type: ignore[arg-type]


def test_memory_efficient_has_fewer_batches_in_the_making() -> None:
    class Rows(torch.utils.data.Dataset[Any]):
        asked = 0

        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> torch.Tensor:
            self.asked += 1
            return torch.zeros(20_000)

    kept = []
    for memory_efficient in (False, True):
        config = DataLoaderConfig(
            batch_size=2, num_workers=2, prefetch_factor=8, memory_efficient=memory_efficient
        )
        rows = Rows()
        with EfficientDataLoader(rows, config, workers="threads") as loader:
            epoch = iter(loader)
            held = [next(epoch) for _ in range(6)]
            assert len(held) == 6
            assert loader.prefetch_factor == (1 if memory_efficient else 8)
            epoch.close()
            assert rows.asked <= 2 * (6 + 2 * loader.prefetch_factor)
            del held
            buffers = loader._fl_open.buffers
            buffers.take((1,), torch.uint8)  # which is back at once, as one more
            kept.append(sum(map(len, buffers._free.values())))
    assert kept[1] <= 2 < kept[0]


def test_stats_are_of_real_batches_and_an_epoch_is_logged(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = DataLoaderConfig(batch_size=16, num_workers=2)
    loader = DataLoaderFactory.create_image_dataloader(photos, config, image_size=32)
    with caplog.at_level(logging.INFO, "foreload"), loader:
        for _ in range(2):
            assert sum(len(labels) for _, labels in loader) == 40
        next(iter(loader))  # one that is left is not logged
    assert len(caplog.records) == 2
    assert "3 batches in" in caplog.text
    stats = loader.get_stats()
    assert stats["total_batches"] == 7
    assert stats["total_samples"] == 96
    assert stats["total_time"] == pytest.approx(stats["avg_batch_time"] * 7)
    assert stats["batches_per_second"] == pytest.approx(1 / stats["avg_batch_time"])
    assert 0 < stats["avg_wait_time"] <= stats["avg_batch_time"]
    assert 0 < stats["avg_memory_usage"] <= 100
    assert stats["avg_cpu_usage"] > 0
    now = loader.stats()
    assert stats.keys() > now.keys()
    assert all(
        stats[name] == now[name] for name in ("epochs", "samples", "stages", "cache", "workers", "restarts")
    )
    quiet = EfficientDataLoader(
        list(range(9)), DataLoaderConfig(num_workers=0, enable_monitoring=False, log_loading_stats=False)
    )
    caplog.clear()
    assert len(listed(quiet)) == 1
    assert quiet.get_stats()["total_batches"] == 0
    assert not caplog.records
    only_logged = EfficientDataLoader([1], DataLoaderConfig(num_workers=0, enable_monitoring=False))
    with caplog.at_level(logging.INFO, "foreload"):
        assert listed(only_logged) == [[1]]
    assert len(caplog.records) == 1
    assert only_logged.get_stats()["avg_memory_usage"] == 0


def test_too_little_memory_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from foreload.record import memory

    monkeypatch.setattr(memory, "available_memory", lambda: machine.granted_memory() // 10)
    loader = EfficientDataLoader(list(range(9)), DataLoaderConfig(num_workers=0, max_memory_usage=0.5))
    with pytest.warns(UserWarning, match="more than max_memory_usage=0.5 allows") as caught:
        list(loader)
        list(loader)
    assert len(caught) == 1


def test_its_parts_can_be_reached(caplog: pytest.LogCaptureFixture) -> None:
    loader = EfficientDataLoader(list(range(10)), DataLoaderConfig(batch_size=4, num_workers=0))
    assert isinstance(loader.dataloader, TorchDataLoader)
    with caplog.at_level(logging.INFO, loader.logger.name):
        assert sorted(flat(loader.dataloader)) == list(range(10))
    assert (loader.dataloader.batch_size, loader.dataloader.num_workers) == (4, 0)
    assert [record.name for record in caplog.records] == ["foreload"]
    assert loader.performance_monitor.get_stats()["total_batches"] == loader.get_stats()["total_batches"] == 3
    loader.performance_monitor.start_iteration()
    loader.performance_monitor.update_batch(torch.zeros(4))
    assert loader.get_stats()["total_batches"] == 4


def test_a_dataset_watches_the_memory(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\nb\n")
    dataset = fl.MemoryEfficientDataset(tmp_path / "lines.txt", max_memory_usage=0.9)
    for one in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert 0 < one.memory_monitor.get_memory_stats()["percent"] <= 100
        assert one.memory_monitor.max_memory_usage == 0.9
        assert not one.memory_monitor.check_memory_constraint(1 << 60)


def test_colours_change_only_where_the_documentation_says_so(photos: Path) -> None:
    assert fl.transforms.train(32) == fl.transforms.train(32, color_jitter=None) == fl.get_train_transforms(32)
    asked = fl.transforms.train(32, color_jitter=(0.2, 0.2, 0.2, 0.1))
    ready = [
        fl.create_dataloader(photos, num_workers=0, img_size=32, augment=augment) for augment in (True, False)
    ]
    assert [loader.dataset.transform for loader in ready] == [asked, fl.transforms.val(32)]  # type: ignore[union-attr]


def test_it_is_a_loader_like_any_other() -> None:
    config = DataLoaderConfig(batch_size=2, num_workers=0, shuffle=False)
    loader = EfficientDataLoader(list(range(6)), config)
    assert isinstance(loader, TorchDataLoader)
    config.batch_size = 3  # no effect on what is there
    assert listed(loader) == [[0, 1], [2, 3], [4, 5]]
    assert len(iter(loader)) == len(loader) == 3
    for other in (pickle.loads(pickle.dumps(loader)), copy.copy(loader)):
        before = loader.get_stats()
        assert other.get_stats()["total_batches"] == 0 < before["total_batches"]  # which this one has not measured
        assert listed(other) == listed(loader)
        assert loader.get_stats()["total_batches"] - before["total_batches"] == 3
    epoch = iter(loader)
    next(epoch)
    again = EfficientDataLoader(list(range(6)), dataclass_with(config, batch_size=2))
    again.load_state_dict(loader.state_dict())
    assert listed(again) == [[2, 3], [4, 5]]
    epoch.close()
    assert listed(loader.to("cpu")) == listed(loader)
    assert loader.to("meta").non_blocking
    with pytest.raises(TypeError, match="config must be a DataLoaderConfig, got dict"):
        EfficientDataLoader([1], {"batch_size": 1})  # type: ignore[arg-type]
    config.batch_size = 0
    with pytest.raises(ValueError, match="batch_size must be 1 or more"):
        EfficientDataLoader([1], config)


def dataclass_with(config: DataLoaderConfig, **changes: Any) -> DataLoaderConfig:
    import dataclasses

    return dataclasses.replace(config, **changes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lightning_fits_with_it(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.seen = 0

        def training_step(self, batch: Any, number: int) -> Any:
            self.seen += len(batch[0])
            return self.layer(batch[0]).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    module = Module()
    loader = EfficientDataLoader(TensorDataset(torch.rand(20, 3)), DataLoaderConfig(batch_size=8, num_workers=0))
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, loader)
    assert module.seen == 40
    assert loader.get_stats()["total_samples"] == 40


def test_batches_of_collate_functions_use_the_loaders_memory_again() -> None:
    samples = [(torch.full((40, 50), float(i)), i) for i in range(40)]
    for function in (fl.CustomCollateFn.image_collate, fl.CustomCollateFn.padded_sequence_collate):
        stock = list(TorchDataLoader(samples, batch_size=10, collate_fn=function))
        addresses = set()
        for expected, batch in zip(
            stock, fl.DataLoader(samples, batch_size=10, collate_fn=function, num_workers=0), strict=True
        ):
            for one, other in zip(expected, batch, strict=True):
                assert torch.equal(one, other)
            addresses.add(batch[0].data_ptr())
            del batch, one, other
        assert len(addresses) <= 2
