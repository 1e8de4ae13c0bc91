"""Classes derived from torch's loader have attributes of their own, under names that foreload uses too."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import SequentialSampler

import foreload as fl

LISTED: Any = [1, -2]  # a dataset, too

OWN = {
    "transform": lambda sample: sample + 100,
    "device": "cpu",
    "device_depth": 0,
    "device_transform": len,
    "seed": 7,
    "cache": {1: 2},
    "memory": [],
    "workers": 3,
    "group": "train",
    "distributed": "no",
    "on_error": "skip",
    "max_errors": None,
    "max_restarts": -1,
    "snapshot_every_n_steps": "never",
    "errors": {"seen": 3},
    "restarts": 5,
    "recorder": print,
    "published": True,
    "skip": 5,
    "spans": [(0, 3)],
    "crew": "night",
    "sample_cache": {},
    "batch_spec": 5,
    "by_processes": "some",
    **dict.fromkeys(
        ("_close", "_count", "_epoch", "_errors", "_memory", "_reset", "_running", "_state", "_view"), 0
    ),
}


class Numbers(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index


def epochs(loader: Any) -> list[Any]:
    torch.manual_seed(3)
    return [batch.tolist() for _ in range(2) for batch in loader] + [torch.rand(1).item()]


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 1}], ids=str)
@pytest.mark.parametrize("when", ["before", "after"])
def test_attributes_are_the_derived_classes(options: dict[str, Any], when: str) -> None:
    def make(base: Any) -> Any:
        class Loader(base):  # type: ignore[misc]
            def __init__(self) -> None:
                if when == "before":
                    self._set()
                super().__init__(Numbers(), batch_size=4, shuffle=True, collate_fn=self._put_together, **options)
                if when == "after":
                    self._set()

            def _set(self) -> None:
                for name, value in OWN.items():
                    setattr(self, name, value)

            def _put_together(self, samples: list[int]) -> torch.Tensor:
                return torch.tensor([self.transform(sample) for sample in samples])

        return Loader()

    loader = make(fl.DataLoader)
    assert epochs(loader) == epochs(make(TorchDataLoader))
    assert {name: getattr(loader, name) for name in OWN} == OWN


def test_methods_and_properties_are_the_derived_classes() -> None:
    class Loader(fl.DataLoader[Any]):
        device = property(lambda self: torch.device("cpu"))  # type: ignore[assignment]

        def transform(self, sample: int) -> int:
            return sample + 100

    loader = Loader(Numbers(), batch_size=4, num_workers=0)
    assert loader.transform(1) == 101
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


class Broken(Numbers):
    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise ValueError("broken")
        return index


def test_a_derived_classs_attributes_hide_nothing_from_the_loader() -> None:
    class Loader(fl.DataLoader[Any]):
        def __init__(self) -> None:
            self.errors: Any = "own"
            self.skip = "own"  # type: ignore[assignment]
            options: Any = {"skip": fl.Skip(samples=[0]), "on_error": "skip"}
            super().__init__(Broken(), batch_size=4, num_workers=0, **options)

    def batches() -> list[Any]:
        return [batch.tolist() for batch in loader]

    loader = Loader()
    assert batches() == [[1, 2, 3, 4], [6, 7, 8], [9]]
    assert (loader.errors, loader.skip, loader.stats()["errors"]) == ("own", "own", 1)
    given = [fl.Skip(samples=[1])]
    loader.skip = given  # type: ignore[assignment]  # once there is a loader, this is its option
    assert loader.skip is given
    assert batches() == [[0, 2, 3, 4], [6, 7, 8], [9]]
    with pytest.raises(TypeError, match=r"skip must be a foreload\.Skip"):
        loader.skip = [0, 1]  # type: ignore[assignment, list-item]


def test_a_derived_class_may_empty_the_list_of_errors() -> None:
    class Loader(fl.DataLoader[Any]):
        pass

    loader = Loader(Broken(), batch_size=4, num_workers=0, on_error="skip")
    for _ in range(2):
        loader.errors = []
        assert len(list(loader)) == 3
        assert [error.index for error in loader.errors] == [5]


def test_a_method_of_a_derived_class_may_be_called_skip() -> None:
    class Loader(fl.DataLoader[Any]):
        def skip(self, count: int) -> int:  # type: ignore[override]
            return count + 1

    loader = Loader(Numbers(), batch_size=5, num_workers=0)
    assert loader.skip(1) == 2
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_a_base_class_may_keep_that_a_class_was_derived_to_itself() -> None:
    class Registry:
        def __init_subclass__(cls) -> None:
            pass  # without super()

    class Registered(Registry, fl.DataLoader[int]):
        def __init__(self, dataset: Any) -> None:
            self.transform = "mine"
            super().__init__(dataset, batch_size=2, num_workers=0)
            self.seed = "run"

    loader = Registered(Numbers())
    assert epochs(loader) == epochs(fl.DataLoader(Numbers(), batch_size=2, num_workers=0))
    assert (loader.transform, loader.seed) == ("mine", "run")


def test_options_are_what_a_derived_class_hands_on() -> None:
    class Loader(fl.DataLoader[Any]):
        def __init__(self, **options: Any) -> None:
            self.transform = str
            super().__init__(Numbers(), batch_size=5, transform=lambda sample: -sample, **options)

    loader = Loader(num_workers=0, seed=3)
    assert loader.transform is str
    assert loader.seed == 3
    assert [batch.tolist() for batch in loader] == [[0, -1, -2, -3, -4], [-5, -6, -7, -8, -9]]
    assert "seed=3" in repr(loader)


def test_options_of_foreloads_own_class_may_be_set_later() -> None:
    loader: Any = fl.DataLoader(Numbers(), batch_size=5, num_workers=0)
    loader.transform = lambda sample: -sample
    assert [batch.tolist() for batch in loader] == [[0, -1, -2, -3, -4], [-5, -6, -7, -8, -9]]


def test_an_option_that_was_replaced_is_gone() -> None:
    loader = fl.DataLoader(LISTED, transform=lambda sample: sample)
    loader.transform = abs
    assert pickle.loads(pickle.dumps(loader)).transform is abs


def test_wrappers_may_pass_attributes_on_and_call_no_constructor() -> None:
    class Wrapper(fl.DataLoader[Any]):
        def __init__(self, loader: Any) -> None:
            self.loader = loader

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["loader"], name)

        def __iter__(self) -> Any:
            return iter(self.loader)

    wrapper = Wrapper(fl.DataLoader(LISTED, batch_size=2, num_workers=0))
    assert [batch.tolist() for batch in wrapper] == [[1, -2]]
    assert wrapper._index_sampler is wrapper.loader.batch_sampler


def test_loaders_that_frameworks_build_of_attributes_have_the_options() -> None:
    """As Lightning does: of the attributes by the names of the constructor's parameters."""

    class Loader(fl.DataLoader[Any]):
        pass

    loader: Any = Loader(LISTED, batch_size=2, seed=3)
    loader.transform, loader.seed = str, "seven"
    read = {name: vars(loader)[name] for name in inspect.signature(Loader).parameters if name in vars(loader)}
    built = Loader(**{**read, "sampler": SequentialSampler(LISTED), "batch_sampler": None})
    assert [batch.tolist() for batch in built] == [[1, -2]]
    assert [batch.tolist() for batch in Loader(**{**read, "batch_sampler": None})] == [[1, -2]]


@pytest.mark.parametrize("name", ["spans", "crew", "sample_cache", "batch_spec", "by_processes"])
def test_a_plain_loader_may_get_an_attribute_of_any_name(name: str) -> None:
    loader: Any = fl.DataLoader(Numbers(), 4, num_workers=0)
    setattr(loader, name, OWN[name])
    assert getattr(loader, name) is OWN[name]
    assert epochs(loader) == epochs(TorchDataLoader(Numbers(), 4))


@pytest.mark.parametrize("name", ["spans", "crew", "sample_cache", "batch_spec", "by_processes"])
def test_a_derived_class_may_have_a_method_of_any_name(name: str) -> None:
    kind = type("Loader", (fl.DataLoader,), {name: lambda self: 5})
    loader: Any = kind(Numbers(), 4, num_workers=0)
    assert epochs(loader) == epochs(TorchDataLoader(Numbers(), 4))
    assert getattr(loader, name)() == 5


def test_a_derived_class_may_take_all_attributes_of_a_loader() -> None:
    def copied(base: Any) -> Any:
        class Loader(base):  # type: ignore[misc]
            def __init__(self, loader: Any) -> None:
                self.__dict__.update(loader.__dict__)

        return Loader(base(Numbers(), batch_size=4, shuffle=True))

    assert epochs(copied(fl.DataLoader)) == epochs(copied(TorchDataLoader))
