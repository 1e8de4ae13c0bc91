"""What samples are loaded in: the loop's context, and random generators of their own, in every kind of worker."""

from __future__ import annotations

import contextvars
import decimal
import pickle
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import foreload as fl
from foreload.batch.generators import KeyedGenerators
from foreload.batch.thread_generators import keyed_generators, with_own_generators
from foreload.batch.twisters import Trio, _SlowStates, states_of

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nothing")

KINDS = [{"num_workers": 0}, {"num_workers": 2, "workers": "threads"}, {"num_workers": 2, "workers": "processes"}]


class Context(Dataset[Any]):
    """Samples that say in what context they are loaded."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        weight = torch.ones(2, requires_grad=True)
        return (
            (weight * 2).requires_grad,
            torch.is_inference_mode_enabled(),
            variable.get(),
            decimal.getcontext().prec,
            torch.get_default_dtype(),
        )


class ContextStream(IterableDataset[Any]):
    """The same as a stream."""

    def __iter__(self) -> Any:
        return (Context()[index] for index in range(4))


@pytest.mark.parametrize("kind", KINDS, ids=["none", "threads", "processes"])
@pytest.mark.parametrize("dataset", [Context(), ContextStream()], ids=["map", "stream"])
def test_the_loops_context_holds_in_worker_threads(kind: dict[str, Any], dataset: Any) -> None:
    """Autograd modes, the default dtype, context variables and the decimal context are those of the loop."""

    def seen() -> set[Any]:
        return {sample for batch in fl.DataLoader(dataset, 4, collate_fn=list, **kind) for sample in batch}

    assert seen() == {(True, False, "nothing", 28, torch.float32)}
    token = variable.set("something")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), decimal.localcontext() as context:
            context.prec = 5
            assert seen() == {(False, False, "something", 5, torch.float64)}
        with torch.inference_mode():
            assert seen() == {(False, True, "something", 28, torch.float64)}
        with torch.no_grad(), torch.enable_grad():
            assert seen() == {(True, False, "something", 28, torch.float64)}
    finally:
        variable.reset(token)
        torch.set_default_dtype(torch.float32)


def test_the_context_of_each_batch_is_that_of_its_request() -> None:
    """Threads load a batch in the context of the loop at the time that it was requested ahead."""
    loader = fl.DataLoader(Context(), 4, collate_fn=list, num_workers=1, workers="threads", prefetch_factor=1)
    with torch.no_grad():
        batches = iter(loader)
    with torch.no_grad():
        first = next(batches)
    assert not first[0][0]


def draw_everything() -> list[Any]:
    """Draw by many functions of the three libraries."""
    template = torch.zeros(3)
    return [
        random.random(),
        random.gauss(0, 1),
        random.randint(0, 99),
        random.sample(range(100), 5),
        random.getrandbits(70),
        random.choices("abc", k=4),
        np.random.rand(3).tolist(),
        np.random.randn(1).tolist(),
        np.random.choice(9, 3).tolist(),
        np.random.permutation(5).tolist(),
        np.random.normal(size=3).tolist(),
        np.random.ranf(2).tolist(),
        np.random.sample(),
        np.random.seed(5),
        np.random.rand(),
        torch.rand(2).tolist(),
        torch.randn(1).tolist(),
        torch.randn(()).item(),
        torch.randint(0, 9, (3,)).tolist(),
        torch.randperm(5).tolist(),
        torch.rand_like(template).tolist(),
        torch.randn_like(template).tolist(),
        torch.randint_like(template, 5).tolist(),
        torch.randint_like(template, 2, 9).tolist(),
        template.clone().uniform_(2, 3).tolist(),
        torch.bernoulli(torch.full((4,), 0.5)).tolist(),
        torch.normal(0.0, 1.0, (2,)).tolist(),
        torch.empty(2).exponential_().tolist(),
        torch.distributions.Normal(0.0, 1.0).sample((2,)).tolist(),
        torch.multinomial(torch.ones(5), 2).tolist(),
    ]


def global_states() -> tuple[Any, ...]:
    return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()


def test_global_functions_draw_from_a_threads_own_generators() -> None:
    """A thread draws what the calling thread draws with the same key, and touches no global generator."""
    random.gauss(0, 1)
    np.random.randn(1)
    torch.randn(())  # each keeps the second of two normal numbers
    before = global_states()
    keyed = KeyedGenerators((5, 1))
    with keyed.kept():
        keyed.key(3)
        expected = draw_everything()
    found: list[Any] = []

    def work() -> None:
        own = keyed_generators((5, 1))
        with own.kept():
            own.key(3)
            found.append(with_own_generators(draw_everything))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [expected]
    assert global_states() == before
    assert pickle.loads(pickle.dumps(np.random.rand))(2).shape == (2,)


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.one_of(st.integers(-5, 2**63), st.text(), st.tuples(st.integers(), st.text())),
)
def test_keys_name_random_numbers(seed: int, epoch: int, index: Any) -> None:
    """The same key gives the same numbers; another one others; the loop's states are put back."""
    before = global_states()
    drawn = []
    for key, name in (((seed, epoch), index), ((seed, epoch), index), ((seed ^ 1, epoch), index)):
        keyed = KeyedGenerators(key)
        with keyed.kept():
            keyed.key(name)
            drawn.append((random.random(), np.random.rand(), torch.rand(()).item()))
    assert drawn[0] == drawn[1]
    assert all(one != other for one, other in zip(drawn[0], drawn[2], strict=True))
    assert global_states() == before


@pytest.mark.parametrize("bits", [np.random.MT19937, np.random.PCG64])
def test_states_by_the_libraries_functions(bits: Any) -> None:
    """Where states are not found in memory, they are saved, compared, put back and keyed all the same."""
    trio = Trio(random.Random(1), np.random.RandomState(bits(2)), torch.Generator())
    states = states_of(trio) if bits is np.random.PCG64 else _SlowStates(trio)
    assert isinstance(states, _SlowStates)

    def draw() -> tuple[float, ...]:
        return (
            trio.python.random(),
            trio.numpy.rand(),
            trio.numpy.randn(),
            torch.rand((), generator=trio.torch).item(),
        )

    draw()
    states.save()
    assert not states.changed()
    expected = draw()
    assert states.changed()
    states.restore()
    assert draw() == expected
    states.key(1, 2, 3)
    assert not states.changed()
    keyed = draw()
    states.key(1, 2, 3)
    assert draw() == keyed
    others = states_of(trio.like()) if bits is np.random.PCG64 else _SlowStates(trio.like())
    others.key(1, 2, 4)
    states.key(1, 2, 3)
    states.exchange(others)
    assert draw() != keyed
    states.exchange(others)
    assert draw() == keyed


class Info(Dataset[Any]):
    """Samples drawn by torch's own way for worker threads."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        generator = torch.random.thread_safe_generator()
        info = get_worker_info()
        if info is not None and info.worker_method == "thread":
            assert info.rng is not None
            assert info.rng.torch_generator is generator
            assert 0 <= info.rng.random_generator.random() < 1
            assert 0 <= info.rng.numpy_generator.random() < 1
        return index, torch.rand((), generator=generator).item()


@pytest.mark.skipif(not hasattr(torch.random, "thread_safe_generator"), reason="torch is older than 2.13")
@pytest.mark.parametrize("count", [1, 2, 4])
def test_torchs_generators_of_worker_threads_are_keyed(count: int) -> None:
    """``thread_safe_generator()`` gives the thread's generator, keyed as the global one is elsewhere."""

    def drawn(**options: Any) -> list[Any]:
        return [
            sample for batch in fl.DataLoader(Info(), 3, seed=4, collate_fn=list, **options) for sample in batch
        ]

    assert drawn(num_workers=count, workers="threads") == drawn(num_workers=0)
    assert drawn(num_workers=count, workers="processes") == drawn(num_workers=0)


class RareDraw(Dataset[Any]):
    """Short samples of which a late one draws first; counts how often each is loaded."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return 3000

    def __getitem__(self, index: int) -> float:
        self.loaded.append(index)
        return random.random() if index >= 2000 else 0.0


def test_a_first_draw_after_many_samples_is_keyed_too() -> None:
    """Samples that draw for the first time late in an epoch draw what they would have drawn from the first on."""
    dataset = RareDraw()
    found = torch.cat(list(fl.DataLoader(dataset, 100, num_workers=0, seed=2)))
    keyed = KeyedGenerators((2, 0))
    for index in (2000, 2001, 2555, 2999):
        with keyed.kept():
            keyed.key(index)
            assert found[index].item() == random.random()
    assert dataset.loaded == list(range(3000))


class PureRareDraw(Dataset[Any]):
    """The same, and nothing in it changes."""

    def __len__(self) -> int:
        return 3000

    def __getitem__(self, index: int) -> float:
        return random.random() if index >= 2000 else 0.0


@pytest.mark.parametrize("kind", [PureRareDraw, RareDraw])
def test_by_default_a_late_draw_is_keyed_and_a_state_is_loaded_once(kind: Any) -> None:
    """By default samples draw what they would with a key each; what has a state is asked once for each."""
    dataset = kind()
    torch.manual_seed(4)
    found = torch.cat(list(fl.DataLoader(dataset, 100)))
    torch.manual_seed(4)
    keyed = KeyedGenerators((int(torch.empty((), dtype=torch.int64).random_()), 0))
    for index in (0, 2000, 2099, 2100, 2999):
        with keyed.kept():
            keyed.key(index)
            assert found[index].item() == (random.random() if index >= 2000 else 0.0)
    if kind is RareDraw:
        assert dataset.loaded == list(range(3000))


def mixed_up(samples: list[Any]) -> torch.Tensor:
    """A collate function that draws."""
    return torch.tensor(samples)[torch.randperm(len(samples))] + random.random() + np.random.rand()


@pytest.mark.parametrize("options", [{}, {"seed": 5}])
def test_collate_functions_draw_keyed_numbers(options: dict[str, Any]) -> None:
    """A collate function draws the same numbers for a batch, whichever worker makes it."""

    def batches(**kind: Any) -> torch.Tensor:
        torch.manual_seed(3)
        return torch.cat(
            list(fl.DataLoader(list(range(40)), 8, shuffle=True, collate_fn=mixed_up, **options, **kind))
        )

    expected = batches()
    assert torch.equal(batches(), expected)
    if options:
        for kind in KINDS:
            assert torch.equal(batches(**kind), expected)


class Noise(IterableDataset[Any]):
    """A stream that draws."""

    def __iter__(self) -> Any:
        for index in range(20):
            yield index, random.gauss(0, 1), np.random.randn(), torch.randn(()).item()


def test_streams_draw_by_seed_apart_from_the_loop() -> None:
    """With seed=, a stream's numbers are the same for none and one worker, and the loop's are not touched."""

    def samples(**kind: Any) -> tuple[list[Any], Any]:
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        drawn = []
        found = []
        for batch in fl.DataLoader(Noise(), 4, seed=8, collate_fn=list, **kind):
            found += batch
            drawn.append((random.gauss(0, 1), np.random.randn(), torch.randn(()).item()))
        return found, drawn

    expected = samples(num_workers=0)
    for kind in ({"num_workers": 1, "workers": "threads"}, {"num_workers": 1, "workers": "processes"}, {}):
        assert samples(**kind) == expected


class Reads(Dataset[Any]):
    """Samples that are read on and on, of which only later ones draw random numbers."""

    def __init__(self) -> None:
        self.lines = iter(range(1_000))

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[int, float]:
        line = next(self.lines)
        return line, random.random() if line >= 30 else 0.0


@pytest.mark.parametrize("options", [{}, {"seed": 0}, {"seed": 0, "num_workers": 0}])
def test_a_sample_that_draws_first_in_the_middle_is_loaded_once(options: Any) -> None:
    lines = [line for batch in fl.DataLoader(Reads(), batch_size=8, **options) for line in batch[0].tolist()]
    assert lines == list(range(64))


class DrawsLate(Dataset[Any]):
    """Samples of which only later ones draw random numbers."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> float:
        return random.random() if index >= 30 else 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_keeps_keyed_samples(kind: Any) -> None:
    epochs = []
    for state in range(2):
        random.seed(state)
        loader = fl.DataLoader(DrawsLate(), batch_size=8, seed=0, cache="1MiB", **kind)
        epochs.append([torch.cat(list(loader)).tolist() for _ in range(2)])
    assert epochs[0] == epochs[1]
    assert epochs[0][0] == epochs[0][1]


class Nested(Dataset[Any]):
    """Samples from a loader within."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> list[float]:
        return [*torch.cat(list(fl.DataLoader(DrawsLate(), batch_size=32))).tolist(), random.random()]


@pytest.mark.slow
def test_a_loader_within_a_worker_thread_draws_from_the_threads_generators() -> None:
    epochs = [list(fl.DataLoader(Nested(), batch_size=None, seed=0, **kind)) for kind in KINDS]
    assert epochs[0] == epochs[1] == epochs[2]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_dataset_that_loads_ahead_is_keyed_in_processes(persistent: bool) -> None:
    def epochs(**kind: Any) -> list[list[float]]:
        loader = fl.DataLoader(fl.AsyncPrefetchDataset(DrawsLate()), batch_size=8, seed=0, **kind)
        return [torch.cat(list(loader)).tolist() for _ in range(2)]

    expected = epochs(num_workers=0)
    assert epochs(num_workers=2, workers="processes", persistent_workers=persistent) == expected
    assert expected[0] != expected[1]


@pytest.fixture
def hostile_switching() -> Iterator[None]:
    """Let threads take turns a hundred times as often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


class Draws(Dataset[Any]):
    """Samples of random numbers."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item(), random.gauss(0, 1)])


class DrawsOn(IterableDataset[Any]):
    """The same as a stream."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Any:
        return (Draws(self.size)[index] for index in range(self.size))


@pytest.mark.parametrize("kind", [Draws, DrawsOn])
@pytest.mark.parametrize("options", [{"num_workers": 0}, {"workers": "threads", "num_workers": 2}], ids=str)
def test_loops_of_several_threads_neither_share_generators_nor_touch_the_main_threads(
    kind: Any, options: Any, hostile_switching: None
) -> None:
    """As in a program that trains in the main thread, and loads in threads of its own."""

    def load() -> torch.Tensor:
        own = torch.Generator().manual_seed(0)  # torch draws the seed of an epoch's workers from it
        return torch.cat(list(fl.DataLoader(kind(100), batch_size=5, seed=3, generator=own, **options)))

    expected = load()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    alone = [(torch.rand(()).item(), random.random(), random.gauss(0, 1), np.random.rand()) for _ in range(3000)]
    found: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(load())) for _ in range(3)]
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    for thread in threads:
        thread.start()
    beside = [(torch.rand(()).item(), random.random(), random.gauss(0, 1), np.random.rand()) for _ in range(3000)]
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert all(torch.equal(one, expected) for one in found)
    assert beside == alone


def test_what_a_thread_draws_itself_comes_from_the_global_generators() -> None:
    """A thread that loops over a loader is the user's: only its samples draw from generators lent to it."""

    def loop() -> None:
        loader = fl.DataLoader(Draws(8), batch_size=2, seed=3, num_workers=0)
        drawn.extend((random.random(), np.random.rand(), torch.rand(()).item()) for _ in loader)

    drawn: list[Any] = []
    for turn in range(2):
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        thread = threading.Thread(target=loop)
        thread.start() if turn else loop()
        if turn:
            thread.join()
    assert drawn[:4] == drawn[4:]


def test_a_stream_goes_on_in_another_thread() -> None:
    loader = fl.DataLoader(DrawsOn(12), batch_size=2, seed=3, num_workers=0)
    expected = list(loader)
    batches = iter(fl.DataLoader(DrawsOn(12), batch_size=2, seed=3, num_workers=0))
    found: list[torch.Tensor] = []
    for turn in range(6):
        if turn % 2:
            found.append(next(batches))
        else:
            thread = threading.Thread(target=lambda: found.append(next(batches)))
            thread.start()
            thread.join()
    assert torch.equal(torch.cat(found), torch.cat(expected))


@pytest.mark.parametrize("kind", KINDS, ids=["none", "threads", "processes"])
def test_a_dataset_that_loads_ahead_is_keyed_behind_a_cache_too(kind: dict[str, Any]) -> None:
    def load() -> torch.Tensor:
        dataset = fl.AsyncPrefetchDataset(Draws(16), num_workers=2)
        loader = fl.DataLoader(dataset, batch_size=2, seed=3, cache="1MiB", **kind)
        first, second = torch.cat(list(loader)), torch.cat(list(loader))
        dataset.close()
        return torch.cat([first, second])

    assert torch.equal(load(), load())


class SeedsTorch(Dataset[Any]):
    """Samples that are a function of their index because they seed torch's generator themselves."""

    def __init__(self, forks: bool) -> None:
        self.forks = forks

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        with torch.random.fork_rng(enabled=self.forks):
            torch.manual_seed(index)
            held = torch.get_rng_state()
            first = torch.rand(2)
            torch.set_rng_state(held)
            assert torch.equal(first, torch.rand(2))
            return first, torch.initial_seed()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("kind", [{}, {"seed": 0}, *KINDS], ids=["auto", "seed", "none", "threads", "processes"])
def test_samples_may_seed_torch_in_any_thread(kind: dict[str, Any], forks: bool) -> None:
    """``torch.manual_seed()`` is about the generator that the sample draws from, in the main thread or another."""
    dataset = SeedsTorch(forks)
    expected = [list(map(torch.Tensor.tolist, batch)) for batch in torch.utils.data.DataLoader(dataset, 4)]
    found: list[Any] = []

    def load() -> None:
        found.append([list(map(torch.Tensor.tolist, batch)) for batch in fl.DataLoader(dataset, 4, **kind)])

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    load()
    assert found == [expected, expected]
