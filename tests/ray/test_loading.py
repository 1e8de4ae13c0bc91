"""Loading on a Ray cluster of two nodes: the same batches as without workers, whatever is asked for."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import foreload as fl
from tests.ray.parts import Counting, Drawn, Part, Touched, here, on_ray, pids, plain, running_cluster

ray = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    with running_cluster() as cluster:
        yield cluster


def test_batches_are_those_of_the_calling_thread() -> None:
    options: Any = {"batch_size": 8, "shuffle": True, "seed": 3}
    with on_ray(Drawn(), persistent_workers=True, **options) as loader:
        expected = here(Drawn(), **options)
        for _ in range(2):
            assert plain(loader) == plain(expected)
        assert len(set(pids(loader))) == 2
        # (Both nodes are on this machine. A worker may still be starting, while another one does all the work.)
        nodes = {worker.node for worker in loader.crew.pool.workers}
        assert nodes - {""} == {ray.util.get_node_ip_address()}
    assert loader.stats()["workers"]["kind"] == "ray"
    assert "2 Ray workers" in str(loader.report())


def test_without_a_seed_orders_and_base_seeds_are_torchs() -> None:
    orders, numbers = [], []
    processes = functools.partial(fl.DataLoader, workers="processes", num_workers=2, timeout=240)
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
        assert ours.poll(300)
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
