"""Results of a transform are kept from reuse, whatever they are nested in; and the first step of an epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import foreload as fl
from foreload.nested import tensors
from tests.device.loops import Reusing, Use, train, wanted
from tests.fake_device import FakeDevice


class Plain:
    def __init__(self, image: Any) -> None:
        self.image = image


class OneSlot:
    __slots__ = "image"

    def __init__(self, image: torch.Tensor) -> None:
        self.image = image


class Private:
    __slots__ = ("__image", "never_set")

    def __init__(self, image: torch.Tensor) -> None:
        self.__image = image

    @property
    def image(self) -> torch.Tensor:
        return self.__image


class Movable(Private):
    __slots__ = ()

    def to(self, device: Any) -> Movable:
        return self


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [
        (Plain, lambda batch: batch.image),
        (lambda image: [Plain(Plain(image))], lambda batch: batch[0].image.image),
        (OneSlot, lambda batch: batch.image),
        (Private, lambda batch: batch.image),
        (Movable, lambda batch: batch.image),
        (lambda image: deque([image]), lambda batch: batch[0]),
        (lambda image: frozenset([image]), lambda batch: next(iter(batch))),
    ],
)
def test_results_of_any_class_are_kept_until_they_have_been_read(
    use: Use, wrap: Callable[[Any], Any], unwrap: Callable[[Any], torch.Tensor]
) -> None:
    for seed in [None, *range(10)]:
        device = use(FakeDevice(seed))
        loader = fl.PrefetchLoader(Reusing(30), "cpu", device_transform=wrap)
        assert train(device, map(unwrap, loader)) == wanted(30)


def test_tensors_are_found_in_objects_of_any_class_only_where_asked_for() -> None:
    first, second, third = (torch.tensor([float(i)]) for i in range(3))
    batch = {"x": first, "y": Plain(second), "z": [Movable(third)], "f": torch.sum, "i": 3}
    assert [x.item() for x in tensors(batch)] == [0, 2]
    assert [x.item() for x in tensors(batch, of_any_object=True)] == [0, 1, 2]


def test_the_device_is_in_use_before_workers_page_lock_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA page-locks on a device in use; if none is yet, the first one's memory would be taken by a context."""
    log: list[str] = []

    def side_stream(device: torch.device) -> FakeDevice:
        log.append("device")
        return FakeDevice()

    class Loader(fl.DataLoader[Any]):
        def _get_iterator(self) -> Any:
            log.append("workers")
            return super()._get_iterator()

    monkeypatch.setattr("foreload.loader.side_stream", side_stream)
    assert len(list(Loader(range(4), batch_size=2, num_workers=0, device="cpu"))) == 2
    assert log == ["device", "workers"]
