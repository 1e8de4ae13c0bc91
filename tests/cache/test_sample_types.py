"""Tensors, arrays, images and objects of all types come back from the store bit for bit."""

from __future__ import annotations

import array
import collections
import dataclasses
import decimal
import gc
import pathlib
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from foreload.cache.serialize import deserialize, flatten, restore, serialize
from foreload.cache.store import SampleStore


class Typed(NamedTuple):
    image: torch.Tensor
    label: int = 3


@dataclasses.dataclass(frozen=True)
class Frozen:
    boxes: np.ndarray[Any, Any]
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


class Slotted:
    __slots__ = ("rows",)

    def __init__(self, rows: Any) -> None:
        self.rows = rows


class WithUnit(np.ndarray[Any, Any]):
    """With an attribute, as NumPy's manual has it."""

    unit = ""

    def __array_finalize__(self, other: Any) -> None:
        self.unit = getattr(other, "unit", "")


def there_and_back(sample: Any) -> Any:
    """Through a store, as any worker would have it."""
    store = SampleStore(1, 1 << 22)
    store.load(0, lambda _: sample)
    return store.load(0, lambda _: pytest.fail("it is cached"))


DTYPES = [
    value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
    and value.itemsize
    and not str(value).startswith(("torch.q", "torch.bits", "torch.int1", "torch.uint1"))
]
DTYPES = [
    dtype
    for dtype in dict.fromkeys(DTYPES)
    if dtype in (torch.int16, torch.uint16) or not any(f"int{bits}" == str(dtype)[-4:] for bits in range(1, 8))
]


def filled(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Any bits at all (NaN with a payload among them)."""
    size = int(np.prod(shape)) * dtype.itemsize
    content = np.random.default_rng(seed).integers(0, 2 if dtype is torch.bool else 256, size, np.uint8)
    memory = torch.from_numpy(content)
    return memory.view(dtype).view(shape) if memory.numel() else torch.empty(shape, dtype=dtype)


def bits(tensor: torch.Tensor) -> bytes:
    rows = tensor.clone(memory_format=torch.contiguous_format)
    return rows.view(-1).view(torch.uint8).numpy().tobytes() if rows.numel() else b""


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=4),
    st.data(),
)
def test_tensors_of_all_types_and_strides_come_back_bit_for_bit(
    dtype: torch.dtype, shape: list[int], data: st.DataObject
) -> None:
    whole = filled(dtype, tuple(shape), 3)
    order = data.draw(st.permutations(range(len(shape))))
    view = whole.permute(*order) if order else whole
    for axis in range(view.dim()):
        step = data.draw(st.integers(1, 3))
        view = view[(slice(None),) * axis + (slice(data.draw(st.integers(0, 2)), None, step),)]
    if view.dim() and data.draw(st.booleans()):
        view = view.unsqueeze(0).expand(3, *view.shape)
    back = there_and_back([view])[0]
    assert (back.dtype, back.shape, back.layout) == (view.dtype, view.shape, view.layout)
    assert bits(back) == bits(view)
    if back.numel():
        torch.empty(0, dtype=torch.uint8).set_(back.untyped_storage()).fill_(1)  # writable
        assert set(bits(back)) == {1}


@pytest.mark.parametrize(
    "view",
    [
        lambda whole: whole[:1].expand(6),
        lambda whole: whole.as_strided((3, 2), (1, 1)),
        lambda whole: whole.as_strided((3, 2), (0, 1)),
        lambda whole: whole.view(2, 3).t(),
        lambda whole: whole.as_strided((1, 6), (1 << 61, 1)),
        lambda whole: whole.view(3, 2)[1:],
    ],
    ids=["expanded", "overlapping", "repeated", "transposed", "a stride of no use", "a part"],
)
def test_views_of_a_whole_share_its_memory_afterwards(view: Any) -> None:
    whole = torch.arange(6.0)
    for sample in ([view(whole), whole], [whole, view(whole)]):
        first, second = there_and_back(sample)
        assert [first.tolist(), second.tolist()] == [tensor.tolist() for tensor in sample]
        assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        assert first.untyped_storage().nbytes() == second.untyped_storage().nbytes() == 24


STRUCTURE = np.dtype([("box", "<f4", (4,)), ("name", "S5"), ("wide", "U3"), ("big", ">i8")])


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(3, STRUCTURE),
        np.zeros((2, 0), STRUCTURE),
        np.rec.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array([{"a": 1}, None, [1, 2]], object),
        np.array("one word"),
        np.array(["2020-01-01", "NaT"], "M8[s]"),
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(24).reshape(2, 3, 4)[::-1, :, ::2],
        np.broadcast_to(np.arange(3), (4, 3)),
        np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]),
        np.float16(2.5),
        np.datetime64("2020-01-01"),
        np.zeros((0, 5), np.longdouble),
    ],
    ids=lambda values: f"{type(values).__name__} {values.dtype} {values.shape}",
)
def test_arrays_of_all_kinds_come_back(values: Any) -> None:
    values_back, again = there_and_back((values, {"again": values}))
    for back in (values_back, again["again"]):
        assert type(back) is type(values)
        assert (back.dtype, back.shape) == (values.dtype, values.shape)
        assert str(back) == str(values)
        if isinstance(back, np.ndarray):
            assert back.flags.writeable


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F", "I;16"])
def test_images_of_all_modes_come_back(mode: str) -> None:
    image = Image.effect_noise((7, 5), 50)
    image = image.convert(mode) if mode != "I;16" else image.convert("I").convert("I;16")
    back = there_and_back((image, 1))[0]
    assert (back.mode, back.size, back.getpalette()) == (image.mode, image.size, image.getpalette())
    assert back.tobytes() == image.tobytes()


def test_other_values_come_back() -> None:
    sample = {
        "typed": Typed(torch.ones(2)),
        "frozen": Frozen(np.arange(4), {"x": torch.zeros(0)}),
        "ordered": collections.OrderedDict(b=1, a=2),
        "counted": collections.Counter("hello"),
        "words": ("", "ä\0ö", b"", bytearray(b"\0\1")),
        "path": pathlib.PurePosixPath("/a"),
        "numbers": [1 << 80, -0.0, 1e400, 1j, decimal.Decimal("1.1"), True, None, ...],
        "sets": [{1, 2}, frozenset({3})],
        "array": array.array("d", [1, 2]),
        "class": Typed,
        "size": torch.Size([1, 2]),
        "dtype": torch.bfloat16,
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "sparse": torch.eye(3).to_sparse_csr(),
        "meta": torch.empty(2, 3, device="meta"),
    }
    back = there_and_back(sample)
    assert list(back) == list(sample)
    assert isinstance(back["typed"], Typed)
    assert torch.equal(back["typed"].image, torch.ones(2))
    assert isinstance(back["frozen"], Frozen)
    assert back["frozen"].extra["x"].shape == (0,)
    for key in ("ordered", "counted", "words", "path", "numbers", "sets", "array", "class", "size", "dtype"):
        assert back[key] == sample[key]
        assert type(back[key]) is type(sample[key])
    assert isinstance(back["parameter"], torch.nn.Parameter)
    assert torch.equal(back["sparse"].to_dense(), torch.eye(3))
    assert back["meta"].shape == (2, 3)
    assert back["meta"].device.type == "meta"
    assert there_and_back(Slotted([1])).rows == [1]


def test_a_row_of_something_large_takes_what_the_row_takes() -> None:
    large = torch.zeros(1000, 1000)
    for row in (large[3], large[:, 3], large.numpy()[3]):
        assert sum(map(len, serialize(row))) < 6000


def test_what_was_given_outlives_the_store() -> None:
    store = SampleStore(60, 20 * 900)
    store.native.follow_rule("recent")
    given_out = []
    for index in [*range(60), *range(60)]:
        for _ in range(2):
            sample = store.load(index, lambda index: (np.full(100, index), torch.full((5,), index)))
            given_out.append((index, sample))
    del store
    gc.collect()
    for index, (x, y) in given_out:
        assert (x == index).all()
        assert (y == index).all()
        x += 1


def test_each_hit_is_a_copy_of_its_own() -> None:
    store = SampleStore(1, 1 << 16)
    store.load(0, lambda _: (torch.zeros(4), [1]))
    one, other = (store.load(0, lambda _: None) for _ in range(2))
    one[0].fill_(7)
    one[1].append(2)
    assert other[0].sum() == 0
    assert other[1] == [1]


def test_the_sample_that_is_kept_is_the_one_that_was_loaded() -> None:
    store = SampleStore(1, 1 << 16)
    first = store.load(0, lambda _: torch.zeros(4))
    first += 1  # as a transform in place does
    assert store.load(0, lambda _: None).sum() == 0


def test_packed_samples_are_aligned_for_any_type() -> None:
    memory = np.concatenate(
        serialize([torch.ones(3, dtype=torch.uint8), torch.ones(5, dtype=torch.complex128), np.ones(2)])
    )
    first, second, third = deserialize(memory)
    offsets = [value.data_ptr() - memory.ctypes.data for value in (first, second)]
    assert all(offset % 64 == 0 for offset in offsets)
    assert (third.ctypes.data - memory.ctypes.data) % 64 == 0


def test_arrays_of_a_class_keep_their_attributes(tmp_path: pathlib.Path) -> None:
    values = np.arange(6.0).reshape(2, 3).view(WithUnit)
    values.unit = "metres"
    values.again = [values]  # type: ignore[attr-defined]
    back = there_and_back({"values": values, "row": values[1]})
    assert type(back["values"]) is type(back["row"]) is WithUnit
    assert back["values"].unit == back["row"].unit == "metres"
    assert restore(flatten(values)).unit == "metres"  # as a worker process sends it
    assert back["values"].again[0] is back["values"]
    assert np.array_equal(back["row"], values[1])
    mapped = np.memmap(tmp_path / "values", np.int64, "w+", shape=(4,))
    assert there_and_back(mapped).tolist() == [0] * 4


def computed_by_a_model() -> Any:
    return torch.ones(2, requires_grad=True) * 2


@pytest.mark.parametrize(
    ("make", "why"), [(computed_by_a_model, "detach"), (object, "identity")], ids=["gradient", "object"]
)
def test_what_no_copy_can_be_is_loaded_each_time(make: Any, why: str) -> None:
    store = SampleStore(1, 1 << 16)
    given_out = [make() for _ in range(2)]
    with pytest.warns(UserWarning, match=f"sample 0 cannot be cached, .*{why}"):
        assert store.load(0, lambda _: {"x": given_out[0]})["x"] is given_out[0]
    assert store.load(0, lambda _: {"x": given_out[1]})["x"] is given_out[1]


def test_a_worker_process_sends_no_tensor_without_what_it_was_computed_from() -> None:
    with pytest.raises(pickle.PicklingError, match=r"call detach\(\)"):
        flatten([computed_by_a_model()])
    assert restore(flatten(torch.ones(2, requires_grad=True))).requires_grad


def with_a_name() -> torch.Tensor:
    tensor = torch.ones(3)
    tensor.name_of_file = "a.png"  # type: ignore[attr-defined]
    return tensor


@pytest.mark.parametrize(
    "make",
    [
        with_a_name,
        lambda: torch.ones(3, requires_grad=True),
        lambda: torch.nn.Parameter(torch.ones(2)),
        lambda: torch.ones(3, dtype=torch.complex64).conj(),
    ],
    ids=["attribute", "gradient", "parameter", "conjugate"],
)
def test_equal_samples_are_equal_bytes_wherever_they_lie(make: Any) -> None:
    """A spill folder of an earlier run is used if its samples are these bytes."""
    first, second = make(), make()
    assert first.data_ptr() != second.data_ptr()
    assert np.array_equal(np.concatenate(serialize(first)), np.concatenate(serialize(second)))
    back = there_and_back(first)
    assert (back.dtype, back.requires_grad, vars(back)) == (first.dtype, first.requires_grad, vars(first))
    assert torch.equal(back, first)
