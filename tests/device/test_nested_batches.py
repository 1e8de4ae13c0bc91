"""Batches of any make on a device: types, sharing, strides, and what is recorded of them."""

from __future__ import annotations

import dataclasses
import weakref
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import foreload as fl
from foreload.nested import move, tensors
from tests.device.loops import OfTorch
from tests.fake_device import FakeDevice


@pytest.fixture(params=[True, False], ids=["page-locked", "ordinary"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    device = FakeDevice(page_locked=request.param)
    monkeypatch.setattr("foreload.device.prefetch.side_stream", lambda where, *, non_blocking=True: device)
    return device


def moved(device: FakeDevice, batch: Any) -> Any:
    (result,) = fl.PrefetchLoader([batch], "cpu")
    device.settle()
    return result


@dataclasses.dataclass
class Plain:
    x: torch.Tensor
    name: str


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    name: str


@dataclasses.dataclass(slots=True)
class Slots:
    x: torch.Tensor
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    x: torch.Tensor
    name: str
    twice: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "twice", self.x * 2)


@dataclasses.dataclass
class Unfinished:
    x: torch.Tensor
    name: str
    later: torch.Tensor = dataclasses.field(init=False)


class Rows(list[Any]):
    def __init__(self, rows: list[Any], *, names: list[str]) -> None:
        super().__init__(rows)
        self.names = names


class Made(Mapping[str, torch.Tensor]):
    """Makes a tensor when it is asked for."""

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.full((1000,), float(name))

    def __iter__(self) -> Iterator[str]:
        return iter("01234567")

    def __len__(self) -> int:
        return 8


Point = namedtuple("Point", "x y")


class Output(OrderedDict[str, Any]):
    """Like the outputs of transformers' models."""

    def update(self, *_: Any, **__: Any) -> None:
        raise Exception("You cannot use ``update`` on a ModelOutput instance.")

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


def test_containers_keep_their_types(device: FakeDevice) -> None:
    x = torch.ones(2)
    constant = np.broadcast_to(np.ones(1), 3)
    output = Output()
    output["logits"] = x
    counts: defaultdict[str, list[Any]] = defaultdict(list, a=[x])
    batch = {
        "list": [x, (x, 3)],
        "named": Point(x, "text"),
        "data": [kind(x, "cat") for kind in (Plain, Frozen, Slots, FrozenSlots, Unfinished)],
        "ordered": OrderedDict(a=x),
        "default": counts,
        "proxy": MappingProxyType({"a": x}),
        "user": UserDict(a=x),
        "output": output,
        "array": np.ones(3),
        "constant": constant,
        "rows": Rows([x], names=["cat"]),
        "others": [None, torch.Tensor, "text", b"bytes", 1.5, {1, 2}],
    }
    result = moved(device, batch)
    assert isinstance(result["list"][1], tuple)
    found = [
        result["list"][0],
        result["list"][1][0],
        result["named"].x,
        *(each.x for each in result["data"]),
        *(result[name]["a"] for name in ("ordered", "proxy", "user")),
        result["default"]["a"][0],
        result["output"].logits,
        result["output"]["logits"],
    ]
    # One tensor that occurs many times is copied once.
    assert all(each is found[0] for each in found)
    assert found[0] is not x
    assert found[0].tolist() == [1, 1]
    assert [type(each) for each in result["data"]] == [Plain, Frozen, Slots, FrozenSlots, Unfinished]
    assert {each.name for each in result["data"]} == {"cat"}
    assert result["data"][3].twice.tolist() == [2, 2]
    assert result["data"][3].twice is not batch["data"][3].twice  # type: ignore[index]
    for name in ("named", "ordered", "default", "proxy", "user", "output"):
        assert type(result[name]) is type(batch[name])
    assert result["default"]["new"] == []
    assert result["array"] is not batch["array"]  # which the loader may write to again
    assert result["array"].tolist() == [1, 1, 1]
    assert result["constant"] is constant
    assert (type(result["rows"]), result["rows"].names) == (Rows, ["cat"])
    assert result["rows"][0] is found[0]
    assert not hasattr(result["data"][-1], "later")
    assert result["others"] == batch["others"]
    # The batch itself is as it was.
    assert batch["user"]["a"] is batch["default"]["a"][0] is x  # type: ignore[index]


def test_tensors_that_are_made_when_asked_for_are_told_apart(device: FakeDevice) -> None:
    seen: dict[str, torch.Tensor] = move(Made(), lambda tensor: tensor + 10)
    assert [seen[name][0].item() for name in Made()] == [10, 11, 12, 13, 14, 15, 16, 17]


class Movable:
    """Moves itself and returns itself, as some do."""

    def __init__(self) -> None:
        self.x, self.at = torch.ones(2), None
        self.fields = {"y": torch.ones(3)}

    def to(self, where: Any) -> Movable:
        self.at = where
        self.x = self.x.clone()
        for name, value in self.fields.items():
            self.fields[name] = value.clone()
        return self


class Hidden:
    """Has its memory where nobody finds it, and records it itself."""

    def __init__(self) -> None:
        self.recorded: list[Any] = []

    def to(self, where: Any, non_blocking: bool) -> Hidden:
        made = Hidden()
        made.recorded = self.recorded
        return made

    def record_stream(self, stream: Any) -> None:
        self.recorded.append(stream)


def recorded(device: FakeDevice) -> list[Any]:
    return [each for reference in device.recorded if (each := reference()) is not None]


def test_objects_are_moved_and_recorded(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    movable, hidden = Movable(), Hidden()
    sources = [movable.x, movable.fields["y"]]
    packed = pack_sequence([torch.ones(3), torch.ones(1)])
    monkeypatch.setattr(FakeDevice, "copy", by_object(FakeDevice.copy))
    result = moved(device, [movable, hidden, packed])
    assert result[0].at == "cpu"
    assert movable.at is None
    assert isinstance(result[2], PackedSequence)
    found = {id(each) for each in recorded(device)}
    assert found >= {id(result[0].x), id(result[0].fields["y"]), id(result[1]), id(result[2].data)}
    assert len(found) == len(recorded(device))
    assert not found & {id(source) for source in sources}


def by_object(copy: Any) -> Any:
    """As :class:`foreload.device.stream` calls ``to``: with ``non_blocking`` if it takes that."""

    def call(self: FakeDevice, value: Any) -> Any:
        if isinstance(value, Hidden):
            return value.to("cpu", non_blocking=True)
        return copy(self, value)

    return call


def test_tensors_that_objects_replace_are_kept_until_they_are_copied(device: FakeDevice) -> None:
    movable = Movable()
    before = movable.fields["y"]
    epoch = iter(fl.PrefetchLoader(OfTorch(iter([movable, torch.ones(1)])), "cpu", depth=1))
    next(epoch)
    assert movable.fields["y"] is not before
    assert any(each is before for source in epoch._sources for each in source.tensors)
    epoch.close()


def test_objects_are_kept_until_they_are_copied(device: FakeDevice) -> None:
    class Foreign:
        """Has its memory where nobody finds it."""

        def to(self, where: Any) -> int:
            return 3

    made: list[weakref.ref[Foreign]] = []

    def batches() -> Iterator[Foreign]:
        for _ in range(3):
            batch = Foreign()
            made.append(weakref.ref(batch))
            yield batch
            del batch

    epoch = iter(fl.PrefetchLoader(OfTorch(batches()), "cpu", depth=1))
    assert next(epoch) == 3
    assert [each() is not None for each in made] == [True, True]
    device.settle()
    assert [batch for batch in epoch] == [3, 3]  # noqa: C416 - the class has no length
    assert [each() is not None for each in made] == [False, False, False]


def strange() -> Iterator[tuple[str, torch.Tensor]]:
    x = torch.arange(120, dtype=torch.float32).view(2, 3, 4, 5)
    yield "scalar", torch.tensor(3.0)
    yield "empty", torch.zeros(0, 3)
    yield "channels last", x.contiguous(memory_format=torch.channels_last)
    yield "transposed", x.transpose(1, 3)
    yield "every other", x[:, :, ::2]
    yield "with an offset", x[1:]
    yield "expanded", torch.arange(3.0).expand(4, 3)
    for dtype in (torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.float64, torch.complex64):
        yield str(dtype), x.to(dtype)
    yield "conjugated", x.to(torch.complex64).conj()


@pytest.mark.parametrize("name", [name for name, _ in strange()])
def test_strides_and_values_are_those_of_to(device: FakeDevice, name: str) -> None:
    tensor = dict(strange())[name]
    with torch.inference_mode(name == "transposed"):
        result = moved(device, [tensor, 1])[0]
    assert torch.equal(result, tensor)
    assert result.stride() == tensor.to("meta").stride()
    assert (result.dtype, result.shape) == (tensor.dtype, tensor.shape)


def test_views_of_one_storage_are_copied_each(device: FakeDevice) -> None:
    x = torch.arange(6.0)
    whole, part = moved(device, (x, x[2:4]))
    assert whole.tolist() == x.tolist()
    assert part.tolist() == [2, 3]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse")
def test_sparse_and_nested_tensors_keep_their_layout(device: FakeDevice) -> None:
    dense = torch.tensor([[0.0, 1], [2, 0]])
    parts = [torch.ones(2), torch.ones(3)]
    batch = [
        dense.to_sparse(),
        dense.to_sparse_csr(),
        dense.to_sparse_csc(),
        torch.nested.nested_tensor(parts),
        torch.nested.nested_tensor(parts, layout=torch.jagged),
    ]
    result = moved(device, batch)
    assert [each.layout for each in result] == [each.layout for each in batch]
    assert all(torch.equal(each.to_dense(), dense) for each in result[:3])
    assert all([part.tolist() for part in each.unbind()] == [[1, 1], [1, 1, 1]] for each in result[3:])
    # Only plain tensors can be recorded, of any kind and version.
    assert all(each.layout is torch.strided and not each.is_nested for each in tensors(result))
    assert len(list(tensors(result))) >= 2 + 3 + 3 + 1 + 2


def test_gradients_lead_back_to_the_source(device: FakeDevice) -> None:
    weight = torch.ones(3, requires_grad=True)
    (moved(device, [weight])[0] * 2).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2, 2, 2]


def test_subclasses_of_tensor_keep_their_class(device: FakeDevice) -> None:
    class Image(torch.Tensor):
        pass

    assert type(moved(device, [torch.ones(2).as_subclass(Image)])[0]) is Image


def test_a_device_without_streams_is_copied_to_as_well() -> None:
    (batch,) = fl.PrefetchLoader([(torch.zeros(2), pack_sequence([torch.ones(3)]), Hidden())], "meta")
    assert batch[0].device.type == batch[1].data.device.type == "meta"
