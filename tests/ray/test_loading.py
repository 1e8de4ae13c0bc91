"""Loading on a Ray cluster of two nodes: the same batches as without workers, whatever is asked for."""

from __future__ import annotations

import ctypes
import doctest
import functools
import importlib
import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import foreload as fl
from tests.ray.parts import Counting, Drawn, Lethal, Part, Touched, plain, running_cluster
from tests.test_documents import blocks_of

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    with running_cluster() as cluster:
        yield cluster


def on_ray(dataset: Any, workers: Any = 2, **options: Any) -> fl.DataLoader[Any]:
    return fl.DataLoader(dataset, num_workers=workers, workers="ray", **options)


def here(dataset: Any, **options: Any) -> fl.DataLoader[Any]:
    options.pop("persistent_workers", None)
    return fl.DataLoader(dataset, num_workers=0, **options)


def pids(loader: Any) -> list[int]:
    return [worker.process.pid for worker in loader.crew.pool.workers]


def test_batches_are_those_of_the_calling_thread() -> None:
    options: Any = {"batch_size": 8, "shuffle": True, "seed": 3}
    with on_ray(Drawn(), persistent_workers=True, **options) as loader:
        expected = here(Drawn(), **options)
        for _ in range(2):
            assert plain(loader) == plain(expected)
        assert len(set(pids(loader))) == 2
        assert len({worker.node for worker in loader.crew.pool.workers}) >= 1
    assert loader.stats()["workers"]["kind"] == "ray"
    assert "2 Ray workers" in str(loader.report())


def test_without_a_seed_orders_and_base_seeds_are_torchs() -> None:
    orders, numbers = [], []
    processes = functools.partial(fl.DataLoader, workers="processes", num_workers=2)
    for make in (on_ray, processes):
        torch.manual_seed(5)
        batches = plain(make(Drawn(20), batch_size=4, shuffle=True))
        orders.append([batch["index"] for batch in batches])
        numbers.append(torch.rand(()).item())
    assert orders[0] == orders[1]
    assert numbers[0] == numbers[1]


def test_a_batch_is_not_copied_and_may_be_written_to() -> None:
    with on_ray(Drawn(48, side=256), batch_size=8, persistent_workers=True) as loader:
        batches = list(loader)
        held = [batch["picture"] for batch in batches]
        # In the memory of the store, which is mapped from a file.
        maps = Path("/proc/self/maps").read_text().splitlines()
        for picture in held:
            (line,) = [line for line in maps if _has(line, picture.data_ptr())]
            assert "plasma" in line or "/dev/shm" in line
        for number, picture in enumerate(held):
            picture += 1000 * number
        assert plain(batch["index"] for batch in loader) == [[*range(8 * k, 8 * k + 8)] for k in range(6)]
        for number, (picture, batch) in enumerate(zip(held, batches, strict=True)):
            expected = batch["index"].float() + 1000 * number
            assert torch.equal(picture[:, 2, 5, 5], expected)  # nobody else has written there


def _has(line: str, address: int) -> bool:
    begin, end = (int(part, 16) for part in line.split()[0].split("-"))
    return begin <= address < end


def _keep(picture: torch.Tensor, pipe: Any) -> None:
    pipe.recv()
    pipe.send(picture[:, 0, 0, 0].tolist())


def test_a_forked_child_keeps_its_batch() -> None:
    with on_ray(Drawn(120, side=256), batch_size=8, persistent_workers=True) as loader:
        epoch = iter(loader)
        picture = next(epoch)["picture"]
        expected = picture[:, 0, 0, 0].tolist()
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=_keep, args=(picture, theirs))
        child.start()
        del picture
        for _ in epoch:
            pass
        ours.send(None)
        assert ours.poll(60)
        assert ours.recv() == expected
        child.join()


def test_how_far_ahead_is_bounded() -> None:
    drawn = []

    class Watched(torch.utils.data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            for index in range(60):
                drawn.append(index)
                yield index

    epoch = iter(on_ray(Drawn(), batch_size=1, sampler=Watched(), prefetch_factor=3))
    for number in range(1, 8):
        next(epoch)
        assert len(drawn) <= number + 6


def test_an_exception_comes_in_its_place_and_the_epoch_goes_on() -> None:
    epoch = iter(on_ray(Drawn(12, fails=frozenset({5})), batch_size=4))
    assert next(epoch)["index"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="no such picture: 5") as caught:
        next(epoch)
    notes = "\n".join(caught.value.__notes__)
    assert "sample 5 (position 1 of its batch)" in notes
    assert "in __getitem__" in notes  # the worker's traceback
    assert next(epoch)["index"].tolist() == [8, 9, 10, 11]


def test_samples_that_fail_are_replaced() -> None:
    options: Any = {"batch_size": 4, "on_error": "replace", "seed": 0}
    loaders = [make(Drawn(12, fails=frozenset({5, 8})), **options) for make in (on_ray, here)]
    got, expected = map(plain, loaders)
    assert got == expected
    assert [(e.index, e.error, e.action) for e in loaders[0].errors] == [
        (e.index, e.error, e.action) for e in loaders[1].errors
    ]


class Own(NamedTuple):
    index: int
    name: str


def test_classes_and_functions_that_workers_cannot_import() -> None:
    class Local(Exception):
        pass

    class Pair(NamedTuple):
        number: Any
        pixel: Any

    class Samples(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            if index == 7:
                raise Local("own")
            return index

    epoch = iter(on_ray(Samples(), batch_size=2, collate_fn=lambda s: Pair(torch.tensor(s), torch.zeros(40_000))))
    for number in range(3):
        batch = next(epoch)
        assert type(batch) is Pair
        assert batch.number.tolist() == [2 * number, 2 * number + 1]
    with pytest.raises(Local, match="own"):
        next(epoch)


def test_a_dataset_is_a_copy_that_may_be_changed() -> None:
    class Changing(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.array = np.zeros((50, 10_000))

        def __len__(self) -> int:
            return 50

        def __getitem__(self, index: int) -> Any:
            self.array[index] += index
            return torch.from_numpy(self.array[index]).clone()

    data = Changing()
    assert [row[0].item() for batch in on_ray(data, batch_size=10) for row in batch] == [*range(50)]
    assert not data.array.any()


def test_resuming_in_the_middle_of_an_epoch() -> None:
    options: Any = {"batch_size": 4, "shuffle": True, "seed": 1}
    expected = plain(here(Drawn(40), **options))
    loader = on_ray(Drawn(40), **options)
    epoch = iter(loader)
    assert [plain([next(epoch)])[0] for _ in range(4)] == expected[:4]
    state = loader.state_dict()
    epoch.close()
    for make in (on_ray, here):
        other = make(Drawn(40), **options)
        other.load_state_dict(state)
        assert plain(other) == expected[4:]


def test_streams_and_states_of_workers() -> None:
    def numbers(loader: Any) -> list[Any]:
        return plain(loader)

    expected = numbers(fl.DataLoader(Part(30), batch_size=4, num_workers=2, workers="processes"))
    assert numbers(on_ray(Part(30), batch_size=4)) == expected
    expected = numbers(fl.DataLoader(Counting(24), batch_size=4, num_workers=2, workers="processes"))
    loader = on_ray(Counting(24), batch_size=4)
    epoch = iter(loader)
    got = plain([next(epoch) for _ in range(3)])
    state = loader.state_dict()
    epoch.close()
    other = on_ray(Counting(24), batch_size=4)
    other.load_state_dict(state)
    assert got + numbers(other) == expected


def test_a_cache_for_each_node_lasts_between_epochs(tmp_path: Path) -> None:
    with on_ray(Touched(str(tmp_path), 40), batch_size=4, shuffle=True, seed=0, cache="64MiB") as loader:
        epochs = [sorted(i for batch in loader for i in batch[:, 0].tolist()) for _ in range(2)]
        assert epochs == [[*range(40)]] * 2
        loaded = (tmp_path / "loaded").read_text().split()
        assert all(loaded.count(str(index)) <= 2 for index in range(40))  # once on each node
        stats = loader.stats()["cache"]
        assert stats is not None
        assert stats["hits"] == 80 - len(loaded)
        assert stats["misses"] == len(loaded)
    with pytest.raises(ValueError, match="multiprocessing_context"):
        fl.DataLoader(Drawn(8), num_workers=1, workers="ray", multiprocessing_context="spawn")
    with pytest.raises(ValueError, match="spill"):
        next(iter(on_ray(Drawn(), cache=fl.Cache("1MiB", spill=str(tmp_path)))))


def test_images_are_decoded_natively_with_the_same_augmentation(photos: Path) -> None:
    data = fl.ImageDataset(photos, transform=fl.transforms.train(32))
    options: Any = {"batch_size": 8, "shuffle": True, "seed": 2}
    for (a, b), (c, d) in zip(on_ray(data, **options), here(data, **options), strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, d)


def test_spans_of_all_nodes_are_in_one_report() -> None:
    loader = on_ray(Drawn(), batch_size=4)
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats["stages"]["sample"]["samples"] == 60
    assert stats["stages"]["batch"]["count"] >= 15
    spans = loader.spans.recent()
    lanes = {loader.spans.lanes[lane].name for lane in spans["lane"]}
    assert {"process 0", "process 1", "consumer 0"} >= lanes
    begun = spans["begin"][spans["stage"] == 4]
    waits = spans[spans["stage"] == 7]
    # On the clock of this machine.
    assert (begun > waits["begin"].min()).all()
    assert (begun < waits["end"].max()).all()


def test_init_functions_and_worker_info() -> None:
    def init(worker: int) -> None:
        info = torch.utils.data.get_worker_info()
        info.dataset.size = 100 + worker

    class Told(Drawn):
        def __getitem__(self, index: int) -> Any:
            info = torch.utils.data.get_worker_info()
            return info.id, info.num_workers, info.dataset.size, torch.get_num_threads()

    told = {
        tuple(row) for batch in on_ray(Told(40), batch_size=2, worker_init_fn=init) for row in zip(*plain(batch))
    }
    assert told <= {(0, 2, 100, 1), (1, 2, 101, 1)}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sample_that_kills_its_workers_is_named(workers: int) -> None:
    loader = on_ray(Lethal(12, fails=frozenset({5})), workers, batch_size=4, max_restarts=1)
    with pytest.raises(RuntimeError, match=r"2 workers ended while .* samples \[4, 5, 6, 7\] \(max_restarts=1\)"):
        list(loader)
    # The answer with the batch before it is lost sometimes, if one worker had both; then each is made alone.
    restart = loader.stats()["restarts"][-1]
    assert restart["indices"][0] == [4, 5, 6, 7]
    assert restart["node"]


class Interrupted(Drawn):
    def __getitem__(self, index: int) -> Any:
        if index in self.fails:
            raise KeyboardInterrupt  # by which Ray tells a task that it is cancelled
        return super().__getitem__(index)


def test_a_sample_that_interrupts_its_worker_ends_it() -> None:
    with on_ray(Interrupted(8, frozenset({5})), 1, batch_size=4, prefetch_factor=1, max_restarts=0) as loader:
        batches = iter(loader)
        assert next(batches)["index"].tolist() == [0, 1, 2, 3]
        with pytest.raises(RuntimeError, match=r"has ended.*\[4, 5, 6, 7\] \(max_restarts=0\)"):
            next(batches)


def test_a_dataset_that_nodes_cannot_unpickle() -> None:
    class Missing:
        def __reduce__(self) -> Any:
            return importlib.import_module, ("no_such_module_anywhere",)

        def __len__(self) -> int:
            return 4

    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere") as caught:
        next(iter(on_ray(Missing())))
    assert "runtime_env" in "".join(caught.value.__notes__)


def test_a_late_batch_is_an_error() -> None:
    class Late(Drawn):
        def __getitem__(self, index: int) -> Any:
            if index == 3:
                importlib.import_module("time").sleep(100)
            return index

    order = [0, 1]
    with on_ray(Late(), batch_size=2, sampler=order, persistent_workers=True) as loader:
        assert plain(loader) == [[0, 1]]
        order += [2, 3]
        loader.timeout = 3
        with pytest.raises(RuntimeError, match=r"timed out after 3 seconds; Ray worker \d .* samples \[2, 3\]"):
            list(loader)


def test_another_thread_may_close_an_epoch() -> None:
    class Stuck(Drawn):
        def __getitem__(self, index: int) -> Any:
            threading.Event().wait(60)

    epoch = iter(on_ray(Stuck(), batch_size=2))
    timer = threading.Timer(1.0, epoch.close)
    timer.start()
    with pytest.raises(RuntimeError, match="another thread closed this epoch"):
        next(epoch)
    timer.join()


def test_a_loader_within_a_task_of_the_cluster() -> None:
    @ray.remote(num_cpus=0)
    def train() -> Any:
        return plain(fl.DataLoader(Drawn(16), batch_size=4, seed=1, num_workers=1, workers="ray"))

    assert ray.get(train.remote()) == plain(here(Drawn(16), batch_size=4, seed=1))


def test_doctests() -> None:
    module = importlib.import_module("foreload.workers.ray.shipping")
    assert doctest.testmod(module).failed == 0


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
