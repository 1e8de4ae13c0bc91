"""Files decoded on a device, by stand-ins: crops, flips and errors of the CPU, and its pixels within 1 of 255."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset

import foreload as fl
from foreload import _native, transforms
from foreload.batch.buffers import Buffers
from foreload.datasets.images import resample
from foreload.datasets.images.decoders import DALI, NvImageCodec, TorchVision
from foreload.datasets.images.encoded import EncodedBatch
from foreload.errors import DecodeError
from foreload.nested import move
from tests.conftest import jpeg, photo
from tests.decoders import ByPillow, Upright

SIZE = (24, 20)


def write(folder: Path) -> list[Path]:
    """Files of all kinds; number 4 to 11 have each an Exif orientation."""
    folder.mkdir(exist_ok=True)
    kinds: list[dict[str, Any]] = [{}, {"subsampling": 0}, {"progressive": True}, {"restart_marker_blocks": 3}]
    paths = []
    for number in range(16):
        picture = photo(47 + 7 * number, 91 - 3 * number, number)
        exif = picture.getexif()
        if 4 <= number < 12:
            exif[0x0112] = number - 3
        data = jpeg(picture, exif=exif, **kinds[number % 4])
        paths.append(folder / f"{number:02}.jpg")
        paths[-1].write_bytes(data)
    others = [photo(60, 40, 20).convert("L"), photo(40, 60, 21).convert("CMYK"), photo(300, 10, 22)]
    for number, picture in enumerate(others, 16):
        paths.append(folder / f"{number}.{'png' if number == 18 else 'jpg'}")
        picture.save(paths[-1])
    return paths


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write(tmp_path_factory.mktemp("kinds"))


def load(dataset: Any, **more: Any) -> fl.DataLoader[Any]:
    return fl.DataLoader(dataset, **{"batch_size": 6, "shuffle": True, "seed": 4, "num_workers": 2, **more})


def decoded(files: Any, transform: Any, decoder: Any = None, **more: Any) -> fl.DataLoader[Any]:
    dataset = fl.ImageDataset(files, transform=transform, decode=decoder or ByPillow())
    return load(dataset, device="cpu", **more)


def assert_close(wanted: Any, found: Any, *, bound: int = 1) -> None:
    """Batches of bytes differ by ``bound`` at most, and by little on average; their labels are the same."""
    batches = 0
    for (images, *labels), (same, *also) in zip(wanted, found, strict=True):
        assert (same.shape, same.dtype, same.stride()) == (images.shape, images.dtype, images.stride())
        difference = (images.int() - same.int()).abs()
        assert difference.max() <= bound
        assert difference.float().mean() <= 0.5
        assert all(map(torch.equal, labels, also))
        batches += 1
    assert batches


TRANSFORMS = {
    "train": lambda **more: transforms.train(SIZE, **more),
    "small": lambda **more: transforms.train(SIZE, scale=(0.01, 0.05), **more),
    "val": lambda **more: transforms.val(SIZE, **more),
    "resize": lambda **more: transforms.resize(SIZE, **more),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", list(TRANSFORMS))
def test_crops_flips_and_pixels_are_those_of_the_cpu(files: list[Path], name: str, channels_last: bool) -> None:
    transform = TRANSFORMS[name](normalize=False, channels_last=channels_last)
    decoder = ByPillow()
    wanted, found = load(fl.ImageDataset(files, transform=transform)), decoded(files, transform, decoder)
    for epoch in range(3):
        wanted.set_epoch(epoch), found.set_epoch(epoch)
        assert_close(wanted, found)
    assert sum(decoder.counts) == 3 * 16  # the colour JPEGs


def test_floats_are_normalised_on_the_device(files: list[Path]) -> None:
    bound = 1 / 255 / min(transforms.IMAGENET_STD) + 1e-5
    for transform in (transforms.train(SIZE), transforms.val(SIZE, channels_last=True)):
        pairs = zip(load(fl.ImageDataset(files, transform=transform)), decoded(files, transform), strict=True)
        for (wanted, _), (found, _) in pairs:
            assert (found.dtype, found.stride()) == (torch.float32, wanted.stride())
            assert (wanted - found).abs().max() <= bound
    train = transforms.train(SIZE, normalize=False)
    last = decoded(files, train, device_transform=transforms.Normalize(dtype=torch.bfloat16, channels_last=True))
    for images, _ in last:
        assert images.dtype is torch.bfloat16
        assert images.is_contiguous(memory_format=torch.channels_last)


def test_flips_may_be_left_to_normalize(files: list[Path]) -> None:
    make = lambda **more: transforms.train(SIZE, normalize=False, **more)
    wanted = decoded(files, make())
    left = decoded(files, make(flip_on_device=True))
    flipped = decoded(files, make(flip_on_device=True), device_transform=transforms.Normalize(flip=2))
    normalize = transforms.Normalize()
    for (images, _), (found, _, flips), (normal, _) in zip(wanted, left, flipped, strict=True):
        assert torch.equal(torch.where(flips[:, None, None, None], found.flip(-1), found), images)
        assert torch.equal(normal, normalize(images))


@pytest.mark.parametrize("more", [{"num_workers": 0}, {"workers": "processes"}, {"num_workers": 1}], ids=str)
def test_whoever_reads_the_files_the_images_are_the_same(files: list[Path], more: dict[str, Any]) -> None:
    transform = transforms.train(SIZE, normalize=False)
    for (wanted, labels), (found, same) in zip(
        decoded(files, transform), decoded(files, transform, **more), strict=True
    ):
        assert torch.equal(wanted, found)
        assert torch.equal(labels, same)


def test_an_epoch_goes_on_where_it_was_left(files: list[Path]) -> None:
    transform = transforms.train(SIZE, normalize=False)
    expected = [images for images, _ in decoded(files, transform, batch_size=4)]
    loader = decoded(files, transform, batch_size=4)
    for given, _ in enumerate(loader, 1):
        if given == 2:
            break
    again = decoded(files, transform, batch_size=4)
    again.load_state_dict(loader.state_dict())
    assert all(map(torch.equal, [images for images, _ in again], expected[2:]))


@pytest.mark.parametrize("fails", ["none", "raise"])
def test_what_the_device_cannot_decode_the_cpu_does(files: list[Path], fails: str) -> None:
    transform = transforms.train(SIZE, normalize=False)
    for decoder in (ByPillow(fails), Upright()):
        assert_close(load(fl.ImageDataset(files, transform=transform)), decoded(files, transform, decoder))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
def test_the_kernel_writes_the_same() -> None:
    # Triton interprets a kernel if it is told so before that is imported.
    program = Path(__file__).parent / "interpreted.py"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "views are the same" in done.stdout


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("channels_last", [False, True])
def test_cuda_writes_the_same(files: list[Path], channels_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for make in TRANSFORMS.values():
        transform = make(normalize=False, channels_last=channels_last)
        wanted = load(fl.ImageDataset(files, transform=transform))
        for kernel in (True, False):
            with monkeypatch.context() as patch:
                if not kernel:
                    patch.setattr(resample, "_kernel", lambda: None)
                dataset = fl.ImageDataset(files, transform=transform, decode=ByPillow())
                found = [[part.cpu() for part in batch] for batch in load(dataset, device="cuda")]
            wanted.set_epoch(0)
            assert_close(wanted, found)
    assert resample._kernel() is not None, "CUDA builds of torch bring Triton"
    assert not resample._unusable


def test_a_lack_of_memory_is_no_damage(files: list[Path]) -> None:
    class Full(ByPillow):
        def decode(self, files: Any, device: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        next(iter(decoded(files, transforms.train(SIZE), Full())))


@pytest.fixture
def damaged(files: list[Path], tmp_path: Path) -> list[Path]:
    """Files 1 and 2 are cut short; file 4 ends as it should, and only its decoding shows that it is damaged."""
    paths = list(files[:6])
    for number in (1, 2, 4):
        data = bytearray(files[2 if number == 4 else number].read_bytes())
        paths[number] = tmp_path / f"damaged {number}.jpg"
        if number == 4:
            scan = data.index(b"\xff\xda", data.index(b"\xff\xda") + 2)  # the second of a progressive file
            data[scan + 4] = 9  # colours
        paths[number].write_bytes(data if number == 4 else data[: len(data) // 2])
    return paths


@pytest.mark.parametrize("fails", ["none", "raise"])
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_errors_are_those_of_the_cpu(damaged: list[Path], on_error: Any, fails: str) -> None:
    transform = transforms.train(SIZE, normalize=False)
    for more in ({}, {"workers": "processes"}):
        wanted = load(fl.ImageDataset(damaged, transform=transform), on_error=on_error)
        found = decoded(damaged, transform, ByPillow(fails), on_error=on_error, **more)
        assert_close(wanted, found)
        names = lambda loader: sorted((error.index, error.source, error.error) for error in loader.errors)
        assert names(found) == names(wanted)
        assert len(found.errors) == 3


def test_an_error_names_sample_and_file_and_the_epoch_goes_on(damaged: list[Path], files: list[Path]) -> None:
    transform = transforms.train(SIZE, normalize=False)
    for number in (1, 4):  # noticed by a worker, and by the device
        paths = list(files[:6])
        paths[number] = damaged[number]
        epoch = iter(decoded(paths, transform, batch_size=2, shuffle=False))
        found: list[Any] = []
        for _ in range(3):
            try:
                found.append(len(next(epoch)[1]))
            except DecodeError as error:
                found.append(str(error))
        assert found.count(2) == 2
        (message,) = [each for each in found if each != 2]
        assert f"sample {number} (position {number % 2} of its batch)" in message
        assert f"damaged {number}.jpg" in message
        assert found.index(message) == number // 2


def test_batches_of_which_nothing_is_left_are_left_out(damaged: list[Path], files: list[Path]) -> None:
    paths = [files[0], damaged[4], damaged[1], files[3]]
    loader = decoded(paths, transforms.train(SIZE), batch_size=1, shuffle=False, on_error="skip")
    assert [len(labels) for _, labels in loader] == [1, 1]
    assert {error.index for error in loader.errors} == {1, 2}
    loader = decoded(paths, transforms.train(SIZE), batch_size=1, shuffle=False, on_error="skip", max_errors=1)
    with pytest.raises(RuntimeError, match="2 samples failed in this epoch, more than max_errors = 1"):
        list(loader)


def test_files_that_cannot_be_read(files: list[Path], tmp_path: Path) -> None:
    gone = tmp_path / "gone.jpg"
    gone.write_bytes(files[0].read_bytes())
    empty = tmp_path / "empty.jpg"
    empty.write_bytes(b"")
    dataset = fl.ImageDataset([*files[:4], gone, empty], transform=transforms.train(SIZE), decode=ByPillow())
    gone.unlink()
    loader = load(dataset, device="cpu", on_error="skip")
    ((images, _),) = loader
    assert len(images) == 4
    assert {error.index: error.error.partition(":")[0] for error in loader.errors} == {
        4: "FileNotFoundError",
        5: "foreload.errors.DecodeError",
    }


def test_other_loaders_decode_on_the_cpu(files: list[Path]) -> None:
    transform = transforms.train(SIZE, normalize=False)
    decoder = ByPillow()
    dataset = fl.ImageDataset(files, transform=transform, decode=decoder)
    plain = fl.ImageDataset(files, transform=transform)
    for more in (
        {},
        {"cache": "64MiB", "device": "cpu"},
        {"collate_fn": lambda samples: torch.stack([image for image, _ in samples]), "device": "cpu"},
    ):
        for wanted, found in zip(load(plain, **more), load(dataset, **more), strict=True):
            assert torch.equal(wanted[0], found[0])
    torch.manual_seed(0)
    wanted = plain[3]
    torch.manual_seed(0)
    assert torch.equal(dataset[3][0], wanted[0])
    assert len(list(TorchDataLoader(dataset, batch_size=10))) == 2
    assert not decoder.counts
    subset = load(Subset(dataset, range(3, 9)), device="cpu")
    assert_close(load(Subset(plain, range(3, 9))), subset)
    assert decoder.counts


def test_tar_shards_are_decoded_too(tmp_path: Path) -> None:
    source, shards = tmp_path / "source" / "class", tmp_path / "shards"
    source.parent.mkdir()
    write(source)
    fl.pack(source.parent, shards)
    transform = transforms.train(SIZE, normalize=False)
    assert_close(load(fl.ImageDataset(shards, transform=transform)), decoded(shards, transform))


def test_a_batch_holds_files_and_plans(files: list[Path]) -> None:
    dataset = fl.ImageDataset(files, transform=transforms.train(SIZE), decode=ByPillow())
    spec = load(dataset, device="cpu")._fl_batch_spec
    assembly = dataset.batch_assembly(spec, (4, 1), Buffers())
    assert assembly is not None
    batch = assembly.start([3, 17, 8])
    batch.job.run_here()
    encoded = batch.take()
    assert isinstance(encoded, EncodedBatch)
    assert encoded.data.tobytes() == files[3].read_bytes() + files[8].read_bytes()
    assert encoded.places.tolist() == [0, 2]
    assert encoded.other_places.tolist() == [1]
    with Image.open(files[8]) as image:
        width, height = image.size
    moved = move(encoded, lambda tensor: tensor.clone())
    assert moved.data is encoded.data  # files take long to copy, and nobody writes to them
    assert moved.targets is not encoded.targets
    orientation, *sides = encoded.plans[1][:3]
    assert (orientation, sides) == (5, [height, width])
    box, full, corner, mirrored = _native.view(dataset.transform.native, height, width, 4, 1, 8)  # type: ignore[union-attr]
    assert encoded.plans[1][3:].tolist() == [*box, *full, *corner, mirrored]
    again = pickle.loads(pickle.dumps(encoded))
    found = [part.finish("raise", [])[0] for part in (encoded, again)]
    assert torch.equal(*found)


def test_what_cannot_be_is_said(files: list[Path]) -> None:
    make = lambda **more: fl.ImageDataset(files, **{"transform": transforms.train(SIZE), **more})
    with pytest.raises(ValueError, match="decode must be one of cpu, cuda, nvimagecodec, torchvision, dali"):
        make(decode="gpu")
    for wrong in (3, ByPillow):
        with pytest.raises(TypeError, match="decode must be a name or have a method decode"):
            make(decode=wrong)
    with pytest.raises(ValueError, match="color_jitter is done by the CPU only"):
        make(decode=ByPillow(), transform=transforms.train(SIZE, color_jitter=(0.1, 0, 0, 0)))
    with pytest.raises(ValueError, match=r"needs a transform of foreload\.transforms"):
        make(decode=ByPillow(), transform=lambda image: image)
    for mode in (fl.LoadingMode.EAGER, fl.LoadingMode.CACHED):
        with pytest.raises(ValueError, match="keeps decoded images in memory"):
            make(decode=ByPillow(), loading_mode=mode)
    with pytest.raises(ValueError, match="torchvision decodes on CUDA devices, not on 'cpu'"):
        next(iter(load(make(decode=TorchVision()), device="cpu")))
    for decoder in (TorchVision(), NvImageCodec()):
        assert type(pickle.loads(pickle.dumps(decoder))) is type(decoder)
    assert pickle.loads(pickle.dumps(DALI(3))).num_threads == 3
