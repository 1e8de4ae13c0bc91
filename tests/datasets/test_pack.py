"""Packs: what was put in comes out, for any reader of tar; after a kill too."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

import foreload as fl
from foreload import _native
from foreload.datasets.tar.index import index_of
from foreload.datasets.tar.pack import MANIFEST, pack
from foreload.errors import DecodeError
from tests.conftest import jpeg, photo
from tests.programs import Program


def members(folder: Path) -> list[tuple[str, bytes]]:
    """Return what tarfile finds in all shards."""
    found = []
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                content = tar.extractfile(member)
                assert content is not None
                found.append((member.name, content.read()))
    return found


def fill(folder: Path, count: int, size: int = 300) -> list[Path]:
    rng = np.random.default_rng(0)
    for number in range(count):
        parent = folder / f"class{number % 3}"
        parent.mkdir(exist_ok=True, parents=True)
        (parent / f"{number:05}.bin").write_bytes(rng.bytes(size))
    return sorted(folder.rglob("*.bin"))


def test_tarfile_sees_the_files(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    paths = fill(source, 50, 2000)
    packed = pack(source, target, shard_bytes=20000)
    expected = []
    for path in paths:
        key = str(path.relative_to(source).with_suffix(""))
        expected += [(f"{key}.bin", path.read_bytes()), (f"{key}.cls", path.parent.name[-1].encode())]
    assert members(target) == expected
    assert (packed.samples, packed.tiled, packed.resumed, packed.bytes_before) == (50, 0, 0, 100_000)
    assert packed.shards == [str(path) for path in sorted(target.glob("*.tar"))]
    assert packed.bytes_after == sum(os.path.getsize(shard) for shard in packed.shards)
    # A shard is full once it holds so much.
    assert [len(index_of(shard, save=False)) for shard in packed.shards] == [7] * 7 + [1]
    assert sorted(os.listdir(target)) == sorted(
        [MANIFEST, *(f"shard-{number:06}.tar{end}" for number in range(8) for end in ("", ".idx"))]
    )
    tar, files = fl.TarDataset(target), fl.FileDataset(source)
    assert [(sample["bin"], int(sample["cls"])) for sample in tar] == [
        (data.numpy().tobytes(), target) for data, target in files
    ]
    assert tar.shards.classes == files.classes == ["class0", "class1", "class2"]
    again = pack(source, target, shard_bytes=20000)
    assert (again.resumed, again.shards) == (8, packed.shards)


def test_names_and_labels(tmp_path: Path) -> None:
    names = [
        *("a/x.bin", "b/x.bin", "a/x.txt", "a/x-1.bin", "a/y.1.bin", "a/y.2.bin", "a/y_1.bin", "README"),
        *("a/__x__.bin", "__m__/x.bin", "_/x.bin", "_.bin", "v1.0/x.bin", "üß/ä.BIN", ".hidden", "a/..."),
        *("l" * 120 + "/" + "n" * 200 + ".bin", "two\nlines.bin", "space .bin", os.fsdecode(b"caf\xe9.bin")),
        "b.tar.gz",
    ]
    paths = []
    for number, name in enumerate(names):
        paths.append(tmp_path / "source" / name)
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        paths[-1].write_bytes(b"%d" % number)
    labels = [f"label{number % 4}" for number in range(len(names))]
    pack(paths, tmp_path / "target", labels=labels)
    samples = list(fl.TarDataset(tmp_path / "target"))
    assert len({sample["__key__"] for sample in samples}) == len(names)
    for number, sample in enumerate(samples):
        (field,) = set(sample) - {"__key__", "cls"}
        assert (sample[field], sample["cls"]) == (b"%d" % number, b"%d" % (number % 4))
    assert [sample["__key__"] for sample in samples[:3]] == ["a/x", "b/x", "a/x-1"]
    assert set(samples[2]) == {"__key__", "txt", "cls"}
    assert fl.TarDataset(tmp_path / "target").shards.classes == ["label0", "label1", "label2", "label3"]
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.bin").write_bytes(b"1")
    pack(tmp_path / "flat", tmp_path / "unlabelled")
    assert members(tmp_path / "unlabelled") == [("a.bin", b"1")]
    pack(tmp_path / "flat", tmp_path / "negative", labels=[-3])
    assert members(tmp_path / "negative") == [("a.bin", b"1"), ("a.cls", b"-3")]
    (tmp_path / "flat" / "a.cls").write_bytes(b"1")
    with pytest.raises(ValueError, match=r"a\.cls': in shards \.cls is the name of labels"):
        pack(tmp_path / "flat", tmp_path / "labels")


def test_a_file_between_images_is_warned_of(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("cat/a.jpg", "cat/b.jpg", "dog/a.jpg"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(jpeg(photo(40, 30)))
    (source / "cat" / "._a.jpg").write_bytes(b"hidden")
    pack(source, tmp_path / "clean")
    assert len(fl.ImageDataset(source)) == len(fl.ImageDataset(tmp_path / "clean")) == 3
    (source / "cat" / "notes.txt").write_text("mine")
    with pytest.warns(UserWarning, match=r"1 of 4 files are not images, such as .*notes\.txt.*move them away"):
        pack(source, tmp_path / "mixed")


KILLED = "import sys; from foreload import pack; pack(sys.argv[1], sys.argv[2], shard_bytes=4000)"


@pytest.mark.slow
def test_it_goes_on_after_a_kill(tmp_path: Path) -> None:
    source, target, fresh = tmp_path / "source", tmp_path / "target", tmp_path / "fresh"
    fill(source, 2000)  # so many that it is still at them when it is killed
    process = Program("-c", KILLED, source, target)
    while not (target / "shard-000003.tar").exists():
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    there = len(list(target.glob("*.tar")))
    assert json.loads((target / MANIFEST).read_text())["finished"] is False
    with pytest.warns(UserWarning, match="was not finished"):
        fl.TarDataset(target)
    (target / "shard-000002.tar.idx").unlink(missing_ok=True)
    packed = pack(source, target, shard_bytes=4000)
    assert packed.resumed == there >= 4
    assert len(list(target.glob("*.idx"))) == len(packed.shards)
    pack(source, fresh, shard_bytes=4000)
    assert members(target) == members(fresh)
    assert (target / MANIFEST).read_bytes() == (fresh / MANIFEST).read_bytes()
    assert len(fl.TarDataset(target)) == 2000


@pytest.mark.slow
def test_nobody_else_packs_into_the_folder_meanwhile(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    fill(source, 2000)  # so many that it is still at them when it is stopped
    process = Program("-c", KILLED, source, target)
    while not (target / "shard-000001.tar").exists():
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(BlockingIOError, match="another `foreload pack` is writing to this folder") as caught:
            pack(source, target, shard_bytes=4000)
    finally:
        process.send_signal(signal.SIGCONT)
    assert caught.value.filename == str(target)
    assert process.wait() == 0
    assert pack(source, target, shard_bytes=4000).resumed == len(list(target.glob("*.tar")))


def test_another_source_or_other_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, other, target = tmp_path / "source", tmp_path / "other", tmp_path / "target"
    paths = fill(source, 9)
    fill(other, 9)
    pack(source, target)
    before = members(target)
    for arguments in (
        {"source": other},
        {"source": source, "tiled": True},
        {"source": source, "shard_bytes": 600},
        {"source": source, "labels": [1] * 9},
    ):
        with pytest.raises(ValueError, match="holds a pack of other files"):
            pack(folder=target, **arguments)  # type: ignore[arg-type]
    monkeypatch.chdir(source)
    pack(".", tmp_path / "relative")
    monkeypatch.chdir(other)
    with pytest.raises(ValueError, match="holds a pack of other files"):
        pack(".", tmp_path / "relative")
    paths[0].write_bytes(bytes(300))
    with pytest.raises(ValueError, match="or they have changed"):
        pack(source, target)
    assert members(target) == before
    (target / MANIFEST).write_text("{")
    with pytest.raises(ValueError, match="give an empty one"):
        pack(source, target)
    (target / MANIFEST).unlink()
    with pytest.raises(ValueError, match="holds shards that are not of a pack"):
        pack(source, target)
    for inside in (source, source / "class0" / "shards", source / ".." / source.name / "new"):
        with pytest.raises(ValueError, match="choose a folder outside it"):
            pack(source, inside)
        assert not list(source.rglob("*.tar"))
    with pytest.raises(ValueError, match="shard_bytes must be 1 or more, got 0"):
        pack(source, target, shard_bytes=0)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        pack(tmp_path / "none", target)


def test_a_flipped_byte_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = fill(tmp_path / "source", 9)
    flip = paths[4].read_bytes()
    real = os.fsync

    def faulty(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        content = bytearray(Path(path).read_bytes())
        content[content.index(flip) + 100] ^= 1
        Path(path).write_bytes(content)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", faulty)
    with pytest.raises(DecodeError, match="sample 'class1/00004' does not read back as it was written"):
        pack(tmp_path / "source", tmp_path / "target")
    assert not list((tmp_path / "target").glob("*.tar"))
    monkeypatch.undo()
    assert pack(tmp_path / "source", tmp_path / "target").samples == 9


def exif(orientation: int) -> bytes:
    made = Image.Exif()
    made[0x0112] = orientation
    return made.tobytes()


def cmyk(width: int, height: int) -> Image.Image:
    colors = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 4), np.uint8)
    return Image.fromarray(colors, "CMYK").resize((width, height))


PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
KINDS: dict[str, bytes] = {
    "plain": jpeg(photo(200, 150)),
    "4:2:2": jpeg(photo(199, 151), subsampling=1),
    "4:4:4": jpeg(photo(201, 149), subsampling=0),
    "rgb": jpeg(photo(120, 90), keep_rgb=True),
    "grey": jpeg(photo(200, 150).convert("L")),
    "progressive": jpeg(photo(200, 150), progressive=True),
    "progressive grey": jpeg(photo(70, 50).convert("L"), progressive=True),
    "optimised": jpeg(photo(500, 375), optimize=True, quality=97),
    "restarts": jpeg(photo(200, 150), restart_marker_blocks=7),
    "cmyk": jpeg(cmyk(120, 80)),
    "progressive cmyk": jpeg(cmyk(64, 48), progressive=True),
    "one pixel": jpeg(photo(1, 1)),
    "one column": jpeg(photo(3, 300)),
    "rotated": jpeg(photo(200, 150), exif=exif(6)),
    "icc": jpeg(photo(200, 150), icc_profile=PROFILE, comment=b"a word"),
    "trailing": jpeg(photo(200, 150)) + b"behind the picture",
}


def by_pillow(data: bytes) -> Any:
    with Image.open(io.BytesIO(data)) as image:
        return image.mode, np.asarray(image)


def test_tiled_jpegs_are_the_same_pictures(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, data in KINDS.items():
        (source / f"{name}.jpg".replace(":", "")).write_bytes(data)
    packed = pack(source, tmp_path / "target", tiled=True)
    assert packed.tiled == len(KINDS)
    tiled = dict(members(tmp_path / "target"))
    for name, data in KINDS.items():
        other = tiled[f"{name}.jpg".replace(":", "")]
        assert other != data
        assert b"\xff\xdd\x00\x04" in other  # a restart interval
        (mode, pixels), (mode_, pixels_) = by_pillow(data), by_pillow(other)
        assert mode == mode_
        assert np.array_equal(pixels, pixels_), name
        before, after = Image.open(io.BytesIO(data)), Image.open(io.BytesIO(other))
        assert before.getexif() == after.getexif()
        assert before.info.get("icc_profile") == after.info.get("icc_profile")
        assert before.info.get("comment") == after.info.get("comment")
        assert before.layer == after.layer  # sampling
        assert "progressive" not in after.info
        assert _native.tile_jpeg(other)  # again
    # Only whole pictures count.
    for size in range(0, len(KINDS["rotated"]) - 600, 997):
        with pytest.raises(DecodeError):
            _native.tile_jpeg(KINDS["rotated"][:size])


# 8 x 8 grey pixels, each as the one before it (ITU T.81, annex H): later releases of libjpeg read such files.
LOSSLESS = bytes.fromhex(
    "ffd8 ffc4 0014 00 01000000000000000000000000000000 00"
    "ffc3 000b 08 0008 0008 01 011100 ffda 0008 01 0100 010000 0000000000000000 ffd9"
)


def test_what_cannot_be_tiled(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    out = io.BytesIO()
    photo(50, 40).save(out, "PNG")
    twelve_bits = bytearray(KINDS["plain"])
    at = twelve_bits.index(b"\xff\xc0")
    twelve_bits[at + 1], twelve_bits[at + 4] = 0xC1, 12
    kept = {"png.jpg": out.getvalue(), "text.jpg": b"hello", "empty.jpg": b"", "c3.jpg": LOSSLESS}
    kept |= {"12.jpg": bytes(twelve_bits)}
    for name, data in {**kept, "jpeg.png": KINDS["plain"]}.items():
        (source / name).write_bytes(data)
    packed = pack(source, tmp_path / "target", tiled=True)
    found = dict(members(tmp_path / "target"))
    assert {name: found[name] for name in kept} == kept
    assert packed.tiled == 1
    assert np.array_equal(by_pillow(found["jpeg.png"])[1], by_pillow(KINDS["plain"])[1])
    (source / "half.jpg").write_bytes(KINDS["plain"][:4000])
    with pytest.raises(DecodeError, match=r"half\.jpg: .*; remove it, or pack without tiling"):
        pack(source, tmp_path / "damaged", tiled=True)
    assert pack(source, tmp_path / "untiled").samples == 7


def test_damaged_jpegs_are_refused_or_look_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "x.jpg"
    same = kept = 0
    for number in range(60 + len(KINDS)):
        data = bytearray(list(KINDS.values())[number % len(KINDS)])
        at = int(rng.integers(len(data) // 4, len(data)))
        if number < 60:
            data[at] ^= 1 << int(rng.integers(8))
        elif (at := data.find(b"\xff\0", len(data) // 3)) >= 0:  # a marker, of more than there is
            data[at + 1] = 0xE4
        path.write_bytes(data)
        try:
            expected = by_pillow(bytes(data))
        except OSError:
            expected = None
        target = tmp_path / str(number)
        try:
            pack([path], target, tiled=True)
        except DecodeError:
            assert expected is None
            continue
        ((_, packed),) = members(target)
        if expected is not None:
            assert np.array_equal(by_pillow(packed)[1], expected[1])
            same += 1
            kept += packed == bytes(data)
    assert same - kept > 10
    assert kept > 1
