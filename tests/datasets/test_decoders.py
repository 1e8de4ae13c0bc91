"""Decoders that are installed, against the CPU path: on the CPU, where they have one, and on a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import foreload as fl
from foreload import transforms
from foreload.datasets.images import decoders
from foreload.datasets.images.decoders import DALI, Decoder, NvImageCodec, TorchVision
from tests.conftest import jpeg, photo
from tests.datasets.test_decode_on_device import SIZE, decoded, load, write

PARTS = {NvImageCodec: "nvidia.nvimgcodec", DALI: "nvidia.dali", TorchVision: "torchvision"}
CUDA = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CASES = [
    pytest.param(NvImageCodec, "cpu", marks=pytest.mark.slow),
    pytest.param(DALI, "cpu", marks=pytest.mark.slow),
    *(pytest.param(kind, "cuda", marks=CUDA) for kind in PARTS),
]
# The most that pixels of these photographs differ by, of 255, and on average: what decodes on the CPU does
# so exactly. On a GPU, inverse DCTs differ by 1 or 2; where chroma is repeated, pixels beside edges by more.
BOUNDS = {"cpu": (1, 0.5), "cuda": (16, 1.0)}
REPEATED = (96, 4.0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write(tmp_path_factory.mktemp("kinds"))


def installed(kind: Any) -> Decoder:
    pytest.importorskip(PARTS[kind])
    decoder: Decoder = kind()
    return decoder


def assert_near(wanted: Any, found: Any, kind: Any, device: str) -> None:
    most, mean = REPEATED if kind is TorchVision else BOUNDS[device]
    for (images, labels), (same, also) in zip(wanted, found, strict=True):
        assert same.device.type == device
        difference = (images.int() - same.cpu().int()).abs()
        assert difference.max() <= most
        assert difference.float().mean() <= mean
        assert torch.equal(labels, also.cpu())


@pytest.mark.parametrize(("kind", "device"), CASES)
def test_crops_and_flips_are_those_of_the_cpu(files: list[Path], kind: Any, device: str) -> None:
    decoder = installed(kind)
    for transform in (transforms.train(40, normalize=False), transforms.val(40, normalize=False)):
        wanted = load(fl.ImageDataset(files, transform=transform))
        found = load(fl.ImageDataset(files, transform=transform, decode=decoder), device=device)
        for epoch in range(2):
            wanted.set_epoch(epoch), found.set_epoch(epoch)
            assert_near(wanted, found, kind, device)


@pytest.mark.parametrize(("kind", "device"), CASES)
def test_damage_is_an_error_and_the_decoder_goes_on(
    files: list[Path], tmp_path: Path, kind: Any, device: str
) -> None:
    decoder = installed(kind)
    data = bytearray(files[2].read_bytes())  # progressive
    data[data.index(b"\xff\xda", data.index(b"\xff\xda") + 2) + 4] = 9
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(data)
    paths = [files[0], broken, *files[1:4]]
    transform = transforms.val(40, normalize=False)
    wanted = load(fl.ImageDataset(paths, transform=transform), on_error="skip")
    found = load(fl.ImageDataset(paths, transform=transform, decode=decoder), device=device, on_error="skip")
    for _ in range(2):
        assert_near(wanted, found, kind, device)
    assert [(error.index, error.source) for error in found.errors] == [(1, str(broken))] * 2


@pytest.mark.parametrize(("kind", "device"), CASES)
def test_batches_of_any_size_are_decoded(tmp_path: Path, kind: Any, device: str) -> None:
    decoder = installed(kind)
    paths = []
    for number in range(9):
        paths.append(tmp_path / f"{number}.jpg")
        paths[-1].write_bytes(jpeg(photo(40 + number, 30, number)))
    transform = transforms.val(16)
    for size in (2, 9, 4):
        dataset = fl.ImageDataset(paths, transform=transform, decode=decoder)
        found = list(load(dataset, device=device, batch_size=size))
        assert sum(len(labels) for _, labels in found) == 9
        assert all(images.dtype is torch.float32 for images, _ in found)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", list(PARTS))
def test_numbers_are_right_while_the_gpu_is_busy(tmp_path: Path, kind: Any) -> None:
    """Each image has one colour: memory that is used again too early, or read too early, has another one."""
    decoder = installed(kind)
    paths = []
    for number in range(64):
        paths.append(tmp_path / f"{number:02}.jpg")
        paths[-1].write_bytes(jpeg(photo(8, 8).resize((200 + number, 150)).point(lambda _, n=number: 3 * n)))
    dataset = fl.ImageDataset(
        paths, transform=transforms.train(96, normalize=False), labels=list(range(64)), decode=decoder
    )
    loader = load(dataset, device="cuda", batch_size=8, device_depth=3)
    busy = torch.randn(2048, 2048, device="cuda")
    for _ in range(3):
        kept = []
        for images, labels in loader:
            for _ in range(20):
                busy = busy @ busy / 50
            kept.append((images.float().mean((1, 2, 3)), labels))
            del images
        for means, labels in kept:
            assert ((means - 3 * labels).abs() <= 3).all()


def broken() -> Any:
    raise RuntimeError("operator torchvision::nms does not exist")


@pytest.mark.parametrize(
    "version", [lambda: SimpleNamespace(version=SimpleNamespace()), broken], ids=["cpu", "broken"]
)
def test_a_torchvision_that_cannot_decode_is_none(
    files: list[Path], version: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoders, "find_spec", lambda name: name if name == "torchvision" else None)
    monkeypatch.setattr(decoders, "import_module", lambda name: version())
    for name in ("cuda", "torchvision"):
        with pytest.raises(RuntimeError, match=f"decode='{name}' needs .*torchvision"):
            fl.ImageDataset(files, decode=name)


def test_a_decoder_that_is_not_installed_is_named(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    release = (torch.version.cuda or "12").partition(".")[0]
    monkeypatch.setattr(decoders, "find_spec", lambda name: None)
    with pytest.raises(
        RuntimeError, match=r"decode='cuda' needs nvidia-nvimgcodec.* or torchvision .* or nvidia-dali"
    ):
        fl.ImageDataset(files, decode="cuda")
    with pytest.raises(RuntimeError, match=f"decode='dali' needs nvidia-dali-cuda{release}0: install it"):
        fl.ImageDataset(files, decode="dali")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_default_device_is_not_that_of_batches(
    files: list[Path], num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foreload.epochs.cursor.draw_seed", lambda generator: 0)  # which torch draws there
    transform = transforms.train(SIZE, flip_on_device=True, normalize=False)
    wanted = list(decoded(files, transform, num_workers=num_workers))
    epoch = iter(decoded(files, transform, num_workers=num_workers))
    with torch.device("meta"):
        found = list(epoch)
    for batch, same in zip(wanted, found, strict=True):
        assert all(map(torch.equal, batch, same))
