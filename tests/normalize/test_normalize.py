"""Normalisation of batches against the native transforms, by torch's operations and by the Triton kernel."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import weakref
from collections import OrderedDict, namedtuple
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import foreload as fl
from foreload.normalize import normalize as normalize_module
from foreload.transforms import IMAGENET_MEAN, IMAGENET_STD, Normalize

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def images(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("color_jitter", [None, (0.3, 0.3, 0.3, 0.1)])
def test_where_images_are_normalised_does_not_change_them(
    photos: Path, dtype: torch.dtype, channels_last: bool, color_jitter: Any
) -> None:
    make = lambda **more: fl.transforms.train(32, color_jitter=color_jitter, **more)
    load = lambda transform, **more: fl.DataLoader(
        fl.ImageDataset(photos, transform=transform), batch_size=16, shuffle=True, seed=3, num_workers=2, **more
    )
    native = load(make(channels_last=channels_last))
    for given in (False, True):  # whichever way the bytes come
        moved = load(
            make(normalize=False, channels_last=given),
            device="cpu",
            device_transform=Normalize(dtype=dtype, channels_last=channels_last),
        )
        for epoch in range(2):
            native.set_epoch(epoch), moved.set_epoch(epoch)
            for (wanted, labels), (found, same) in zip(native, moved, strict=True):
                # Crops, colours and flips are drawn by (seed, epoch, index) on either way; rounded once.
                assert torch.equal(found, wanted.to(dtype))
                assert found.dtype is dtype
                assert found.stride() == wanted.stride()
                assert torch.equal(labels, same)


@pytest.mark.parametrize("mean", [IMAGENET_MEAN, (0.0, 0.5, 1.0), (0.1307, 0.2, 0.9)])
@pytest.mark.parametrize("std", [IMAGENET_STD, (1.0, 0.5, 0.001)])
def test_every_value_is_that_of_the_native_transform(mean: Any, std: Any) -> None:
    values = torch.arange(256, dtype=torch.uint8).expand(3, 4, 256)
    transform = fl.transforms.resize((4, 256), mean=mean, std=std)
    assert torch.equal(Normalize(mean=mean, std=std)(values), transform(values))
    exact = (values.double() / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert torch.allclose(Normalize(mean=mean, std=std)(values).double(), exact, rtol=1e-5, atol=1e-4)


def test_flips_are_those_that_the_batch_says() -> None:
    x, flip = images(5, 3, 4, 6), torch.tensor([True, False, True, True, False])
    for channels_last in (False, True):
        wanted = Normalize(channels_last=channels_last)(
            torch.stack([a.flip(-1) if f else a for a, f in zip(x, flip)])
        )
        found = Normalize(channels_last=channels_last, flip=2)((x, 7, flip))
        assert torch.equal(found[0], wanted)
        assert found[0].stride() == wanted.stride()
        assert found[1:] == (7,)  # nobody can apply them twice
    with pytest.raises(ValueError, match="flip must be a tensor with a bool for each of 5 images"):
        Normalize(flip=1)((x, flip[:4]))
    with pytest.raises(ValueError, match="flip must be a tensor with a bool for each of 5 images"):
        Normalize(flip=1)((x, flip.int()))


def test_flips_are_taken_out_of_any_batch() -> None:
    x, y, flip = images(2, 3, 4, 4), torch.arange(2), torch.tensor([True, False])
    wanted = Normalize().apply(x, flip)
    Flipped = namedtuple("Flipped", "image label flip")
    for batch, where, at, rest in (
        ([flip, x, y], 1, 0, [1, 0]),
        ((x, y, flip), None, -1, [0, 1]),
        ((y, x, flip), 1, 2, [1, 0]),
        ({"flip": flip, "x": x, "y": y}, "x", "flip", ["x", "y"]),
        (OrderedDict(x=x, flip=flip, y=y), "x", "flip", ["x", "y"]),
    ):
        found = Normalize(images=where, flip=at)(batch)  # type: ignore[arg-type]
        assert type(found) is type(batch)
        assert len(found) == 2
        image, label = (found[name] for name in (rest if isinstance(batch, dict) else sorted(rest)))
        image, label = (image, label) if image.ndim == 4 else (label, image)
        assert torch.equal(image, wanted)
        assert label is y
        assert len(batch) == 3
    found = Normalize(flip=2)(Flipped(x, y, flip))
    assert torch.equal(found.image, wanted)
    assert (found.label is y, found.flip) == (True, None)


Labelled = namedtuple("Labelled", "image label")


def test_images_are_found_where_they_are_said_to_be() -> None:
    x, y = images(2, 3, 4, 4), torch.arange(2)
    wanted = Normalize().apply(x)
    assert torch.equal(Normalize()(x), wanted)
    assert torch.equal(Normalize()(x[0]), wanted[0])
    for batch, where in (
        ((x, y), None),
        ([x, y], None),
        (Labelled(x, y), None),
        ((y, x), 1),
        ({"image": x, "label": y}, "image"),
        (OrderedDict(label=y, image=x), "image"),
    ):
        found = Normalize(images=where)(batch)
        assert type(found) is type(batch)
        name = 0 if where is None else where
        assert torch.equal(found[name], wanted)
        assert batch[name] is x  # type: ignore[index]
    empty = Normalize(dtype=torch.bfloat16)(x[:0])
    assert (empty.shape, empty.dtype) == ((0, 3, 4, 4), torch.bfloat16)
    grey = Normalize(mean=(0.5,), std=(0.5,))(images(2, 1, 3, 3))
    assert grey.shape == (2, 1, 3, 3)


def test_what_cannot_be_is_said() -> None:
    x = images(2, 3, 4, 4)
    with pytest.raises(
        TypeError, match=r"name the entry of a mapping that holds them, as in Normalize\(images='image'\)"
    ):
        Normalize()({"image": x})
    with pytest.raises(TypeError, match=r"Normalize\(images='picture'\): .* no such entry, it has \['image'\]"):
        Normalize(images="picture")({"image": x})
    with pytest.raises(TypeError, match=r"Normalize\(images=3\): the batch has no such entry, it has 2 entries"):
        Normalize(images=3)((x, 1))
    with pytest.raises(TypeError, match=r"images must be uint8 tensors, as by transforms .*float32"):
        Normalize()(x.float())
    with pytest.raises(TypeError, match=r"images must be uint8 tensors, .* got int"):
        Normalize(images=1)((x, 1))
    with pytest.raises(ValueError, match=r"one channel for each number of mean, got \(2, 4, 4, 3\)"):
        Normalize()(x.permute(0, 2, 3, 1))
    with pytest.raises(ValueError, match="mean and std need a number per channel each, std above 0"):
        Normalize(mean=(0.5,))
    with pytest.raises(ValueError, match="mean and std need a number per channel each, std above 0"):
        Normalize(std=(0.5, 0.5, 0.0))
    with pytest.raises(ValueError, match=r"dtype must be one of torch\.float32, .* got torch\.int64"):
        Normalize(dtype=torch.int64)


def test_the_default_device_is_not_that_of_its_numbers() -> None:
    x = images(2, 3, 4, 4)
    wanted = Normalize().apply(x)
    with torch.device("meta"):
        assert torch.equal(Normalize().apply(x), wanted)


def test_it_is_a_value() -> None:
    normalize = Normalize(dtype=torch.float16)
    with torch.inference_mode():
        wanted = normalize(images(2, 3, 4, 4))
    again = pickle.loads(pickle.dumps(normalize))
    assert again == normalize == Normalize(dtype=torch.float16) != Normalize()
    assert hash(again) == hash(normalize)
    assert torch.equal(again(images(2, 3, 4, 4)), wanted)


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
def test_the_kernel_writes_the_same() -> None:
    # Triton interprets a kernel if it is told so before that is imported.
    program = Path(__file__).parent / "interpreted.py"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "cases are the same" in done.stdout


def test_a_kernel_that_cannot_be_compiled_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        calls = 0

        def fits(self, batch: Any) -> bool:
            return True

        def normalize(self, *_: Any) -> None:
            self.calls += 1
            raise RuntimeError("Failed to find C compiler")

    broken = Broken()
    failures: list[str] = []
    monkeypatch.setattr(normalize_module, "_unusable", failures)
    monkeypatch.setattr(normalize_module, "_kernel", lambda: broken)
    x, out = images(2, 3, 4, 4), torch.empty(2, 3, 4, 4)
    normalize = Normalize()
    with pytest.warns(UserWarning, match="torch's operations are used instead: Failed to find C compiler"):
        assert not normalize._by_kernel(x, None, out)
    assert not normalize._by_kernel(x, None, out)
    assert broken.calls == 1
    left = weakref.ref(out)
    del out
    assert left() is None  # the error's frames would keep a batch on the device


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_cuda_gives_the_same_bits(
    dtype: torch.dtype, channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shape in ((5, 3, 224, 224), (3, 3, 7, 1500), (1, 3, 1, 1)):
        for x in (images(*shape), images(*shape).contiguous(memory_format=torch.channels_last)):
            for flip in (None, torch.rand(len(x)) < 0.5):
                normalize = Normalize(dtype=dtype, channels_last=channels_last)
                wanted = normalize.apply(x, flip)
                by_kernel = normalize.apply(x.cuda(), flip)
                with monkeypatch.context() as patch:
                    patch.setattr(normalize_module, "_kernel", lambda: None)
                    by_torch = normalize.apply(x.cuda(), flip)
                for found in (by_kernel, by_torch):
                    assert torch.equal(found.cpu(), wanted)
                    assert found.stride() == wanted.stride()
    assert normalize_module._kernel() is not None, "CUDA builds of torch bring Triton"
    assert not normalize_module._unusable, "needs a C compiler"


@pytest.mark.parametrize("values", ["x", 0.5, (0.5, None, 0.5), (10**400, 1, 1)], ids=lambda v: str(v)[:20])
@pytest.mark.parametrize("name", ["mean", "std"])
def test_what_is_no_number_for_each_channel_is_named(name: str, values: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a number for each channel"):
        fl.transforms.Normalize(**{name: values})


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300, 1e-300, 1e-40])
@pytest.mark.parametrize("name", ["mean", "std"])
def test_no_image_becomes_nan(name: str, bad: float) -> None:
    if name == "mean" and bad < 1:
        return  # as good as 0
    with pytest.raises(ValueError, match=r"each, std above 0, all of them finite, got"):
        fl.transforms.Normalize(**{name: (0.5, bad, 0.5)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": "123"}, "mean must be a number for each channel, got '123'"),
        ({"std": b"123"}, "std must be a number for each channel, got b'123'"),
        ({"channels_last": 1}, "channels_last must be True or False, got 1"),
        ({"images": True}, "images must be a position or key of a batch, or None, got True"),
        ({"flip": True}, "flip must be a position or key of a batch, or None, got True; .* need flip=2"),
    ],
)
def test_what_would_be_taken_for_something_else_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        fl.transforms.Normalize(**options)


def test_an_entry_that_says_no_flips_is_named_in_a_few_words() -> None:
    images, labels = torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.tensor([3, 1])
    with pytest.raises(
        ValueError, match=r"each of 2 images, got torch\.int64 of the shape \(2,\); flip= says where"
    ):
        fl.transforms.Normalize(flip=1)((images, labels))
    with pytest.raises(ValueError, match="each of 2 images, got list; flip= says where"):
        fl.transforms.Normalize(flip=1)((images, [True, False]))
