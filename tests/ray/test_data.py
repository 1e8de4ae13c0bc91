"""Rows of Ray Data, ranks of Ray Train, and what else belongs to Ray."""

from __future__ import annotations

import ctypes
import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foreload as fl
from tests.ray.parts import Drawn, here, on_ray, plain, running_cluster
from tests.test_documents import blocks_of, run_skipped_examples

ray = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    with running_cluster() as cluster:
        yield cluster


def test_a_loader_within_a_task_of_the_cluster() -> None:
    @ray.remote(num_cpus=0)
    def train() -> Any:
        return plain(fl.DataLoader(Drawn(16), batch_size=4, seed=1, num_workers=1, workers="ray"))

    assert ray.get(train.remote()) == plain(here(Drawn(16), batch_size=4, seed=1))


def test_doctests() -> None:
    module = importlib.import_module("foreload.workers.ray.shipping")
    assert doctest.testmod(module).failed == 0
    run_skipped_examples(fl.from_ray_dataset, from_ray_dataset=fl.from_ray_dataset)


def test_store_memory_is_writable() -> None:
    # Otherwise batches are copied; see workers/ray/memory.py.
    array = ray.get(ray.put(np.zeros(1 << 20, np.uint8)))
    ctypes.memset(array.ctypes.data, 1, 8)
    assert array[:9].tolist() == [1] * 8 + [0]


def test_rows_of_ray_data_come_in_a_known_order() -> None:
    def picture(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"], "picture": np.full((2, 3), row["id"], np.float32), "name": f"n{row['id']}"}

    made = ray.data.range(100, override_num_blocks=7).map(picture)
    rows = fl.from_ray_dataset(made)
    assert len(rows) == 100
    assert [rows[i]["id"] for i in range(100)] == [*range(100)]
    assert rows[-1]["name"] == "n99"
    assert rows[5]["picture"].flags.writeable
    with pytest.raises(IndexError, match="index 100 is out of range for 100 rows"):
        rows[100]
    options: Any = {"batch_size": 16, "shuffle": True, "seed": 4}
    expected = plain(here(rows, **options))
    assert sorted(i for batch in expected for i in batch["id"]) == [*range(100)]
    assert torch.tensor(expected[2]["picture"])[:, 0, 0].tolist() == expected[2]["id"]
    loader = on_ray(rows, **options)
    epoch = iter(loader)
    assert plain([next(epoch), next(epoch)]) == expected[:2]
    state = loader.state_dict()
    epoch.close()
    other = on_ray(rows, **options)
    other.load_state_dict(state)
    assert plain(other) == expected[2:]
    stream = [row["id"] for row in fl.Stream(rows, seed=1, buffer=20)]
    assert sorted(stream) == [*range(100)] != stream
    with pytest.raises(TypeError, match=r"must be a ray\.data\.Dataset, got list"):
        fl.from_ray_dataset([1])


def test_rows_of_blocks_of_pandas_are_those_that_ray_data_gives() -> None:
    def frame(batch: dict[str, Any]) -> Any:
        missing = [None if number % 2 else str(number) for number in batch["id"]]
        times = pd.to_datetime(["2020-01-01" if number % 2 else None for number in batch["id"]])
        floats = [None if number % 2 else 0.5 for number in batch["id"]]
        return pd.DataFrame({"id": batch["id"], "text": missing, "time": times, "float": floats})

    pd = pytest.importorskip("pandas")
    frames = [frame({"id": np.arange(first, first + 4)}) for first in (0, 4)]
    made = ray.data.from_pandas(frames).materialize()
    rows = fl.from_ray_dataset(made)
    found = [rows[i] for i in range(8)]
    assert found == made.take_all()
    assert found[1]["text"] is found[0]["time"] is found[1]["float"] is None


def _train(config: dict[str, Any]) -> None:
    import ray.train

    rank, world = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    torch.manual_seed(rank)
    loader = fl.DataLoader(Drawn(40, side=8), batch_size=4, shuffle=True, seed=3, num_workers=1, workers="ray")
    indices = [batch["index"].tolist() for batch in loader]
    Path(config["folder"], f"{rank}-of-{world}").write_text(repr(indices))


def test_within_ray_train_each_rank_has_its_share(cluster: Any, tmp_path: Path) -> None:
    train = pytest.importorskip("ray.train.torch")
    scaling = importlib.import_module("ray.train").ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.01})
    trainer = train.TorchTrainer(
        _train,
        train_loop_config={"folder": str(tmp_path)},
        scaling_config=scaling,
        run_config=importlib.import_module("ray.train").RunConfig(storage_path=str(tmp_path / "runs")),
    )
    extra = cluster.add_node(num_cpus=1)
    try:
        trainer.fit()
    finally:
        cluster.remove_node(extra)
    parts = [eval((tmp_path / f"{rank}-of-2").read_text()) for rank in range(2)]
    assert [len(part) for part in parts] == [5, 5]
    assert sorted(i for part in parts for batch in part for i in batch) == [*range(40)]


def test_the_document() -> None:
    names: dict[str, Any] = {"dataset": Drawn(8), "made": ray.data.range(64)}
    for block in blocks_of(Path(__file__).parents[2] / "docs" / "ray.md"):
        exec(block, names)
    assert next(iter(names["loader"]))["id"].shape == (32,)
