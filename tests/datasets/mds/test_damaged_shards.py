"""MDS shards and indexes that are damaged are refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import foreload as fl
from tests.datasets.compared import HOW
from tests.datasets.mds.conftest import write_mds

pytestmark = pytest.mark.slow  # the library is one of the frameworks


@pytest.fixture
def hashed(mosaic: Any, tmp_path: Path) -> Path:
    return write_mds(mosaic, tmp_path / "hashed", range(60), hashes=["sha1", "xxh64"])


def flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.9999])
@pytest.mark.parametrize("how", ["none", "threads", "processes"])
def test_shards_are_what_their_hashes_say(hashed: Path, share: float, how: str) -> None:
    shard = hashed / "shard.00001.mds"
    flipped(shard, int(share * shard.stat().st_size))
    dataset = fl.MDSDataset(hashed)
    first, end = map(int, dataset._starts[1:3])
    assert dataset[first - 1]["x"] == first - 1
    with pytest.raises(fl.errors.DecodeError, match=r"shard\.00001\.mds: its sha1 is not what index\.json says"):
        dataset[first]
    loader = fl.DataLoader(dataset, batch_size=10, on_error="skip", **HOW[how])
    assert torch.cat([batch["x"] for batch in loader]).tolist() == [i for i in range(60) if not first <= i < end]


def test_a_shard_is_verified_once_for_all(hashed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = fl.MDSDataset(hashed)
    assert not dataset._verified.any()
    list(fl.DataLoader(dataset, batch_size=10, num_workers=2, workers="processes"))
    assert dataset._verified.all()
    monkeypatch.setattr("foreload.datasets.mds.dataset.verify", None)
    assert len(list(dataset)) == 60
    copy = pickle.loads(pickle.dumps(dataset))
    with pytest.raises(TypeError):
        copy[0]
    assert pickle.dumps(dataset) == pickle.dumps(fl.MDSDataset(hashed))  # the fingerprint of a spill folder


@pytest.mark.parametrize("what", ["count", "first", "middle", "last", "order", "size"])
def test_shards_without_hashes_must_make_sense(mosaic: Any, tmp_path: Path, what: str) -> None:
    folder = write_mds(mosaic, tmp_path / "plain", range(60))
    shard = folder / "shard.00001.mds"
    data = bytearray(shard.read_bytes())
    count = int.from_bytes(data[:4], "little")
    places = {"count": 0, "first": 4, "middle": 4 + 4 * (count // 2), "last": 4 + 4 * count}
    if what == "order":
        data[8:12], data[12:16] = data[12:16], data[8:12]
    elif what == "size":
        begin = int.from_bytes(data[4:8], "little")
        data[begin : begin + 4] = (1 << 20).to_bytes(4, "little")  # of the first column that has no fixed size
    else:
        data[places[what] + 3] = 0x7F
    shard.write_bytes(data)
    dataset = fl.MDSDataset(folder)
    first = int(dataset._starts[1])
    with pytest.raises(fl.errors.DecodeError, match=r"shard\.00001\.mds: (sample \d+ of the shard|the shard has)"):
        dataset[first]
    assert dataset[first - 1]["x"] == first - 1


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("samples", -1, "samples=-1"),
        ("samples", 1 << 80, "cannot have"),
        ("samples", 2.5, "samples=2.5"),
        ("samples", None, "samples=None"),
        ("samples", True, "samples=True"),
        ("raw_data.bytes", -5, "bytes=-5"),
        ("raw_data.bytes", "many", "bytes='many'"),
        ("raw_data.bytes", 3, "cannot have"),
        ("raw_data.basename", "../other.mds", "not in its folder"),
        ("raw_data.basename", "/etc/passwd", "not in its folder"),
        ("raw_data.basename", 7, "not in its folder"),
        ("raw_data.hashes", {"crc17": "00"}, "hashes of an unknown kind"),
        ("raw_data.hashes", ["sha1"], "hashes of an unknown kind"),
        ("raw_data", None, "has no file"),
        ("column_names", ["x"], "columns that do not fit together"),
        ("column_names", ["x", "x", "x", "x", "x"], "columns that do not fit together"),
        ("column_sizes", [8, None, -3, None, 12], "column_sizes"),
        ("column_encodings", [], "columns that do not fit together"),
        ("format", "tiff", "damaged"),
        ("more", 1, "damaged"),
    ],
)
def test_an_index_that_makes_no_sense_is_refused(hashed: Path, field: str, value: Any, words: str) -> None:
    index = hashed / "index.json"
    content = json.loads(index.read_bytes())
    *parents, last = field.split(".")
    place = content["shards"][1]
    for parent in parents:
        place = place[parent]
    place[last] = value
    index.write_text(json.dumps(content))
    with pytest.raises(fl.errors.DecodeError, match=rf"index\.json: .*{words}"):
        fl.MDSDataset(hashed)


def test_an_index_of_too_many_braces_is_refused(hashed: Path) -> None:
    (hashed / "index.json").write_text("[" * 100_000)
    with pytest.raises(fl.errors.DecodeError, match=r"index\.json: not an index of MDS shards, or damaged"):
        fl.MDSDataset(hashed)


@pytest.mark.parametrize("compression", ["zstd:3", "gz"])
def test_shards_that_decompress_to_something_else_are_refused(
    mosaic: Any, tmp_path: Path, compression: str
) -> None:
    folder = write_mds(mosaic, tmp_path / "packed", range(60), compression=compression, hashes=["sha1"])
    index = folder / "index.json"
    content = json.loads(index.read_bytes())
    for field, value, words in (
        ("bytes", 1 << 20, "bytes when decompressed, but index"),
        ("hashes", {"sha1": "0" * 40}, "its sha1 is not"),
    ):
        changed = json.loads(json.dumps(content))
        changed["shards"][1]["raw_data"][field] = value
        index.write_text(json.dumps(changed))
        with pytest.raises(fl.errors.DecodeError, match=rf"shard\.00001\.mds\.\w+: .*{words}"):
            fl.MDSDataset(folder)
        assert not (folder / "shard.00001.mds").exists()
