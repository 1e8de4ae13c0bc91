"""TarDataset gives WebDataset's samples from whatever tar it is, or an error; never a wrong one."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import foreload as fl
from foreload.errors import DecodeError
from tests.datasets.tar.shards import Member, by_webdatasets_rules, shards_of, write_tar

part = st.text(st.sampled_from("ab.üß字_ A-"), min_size=1, max_size=6)
long = st.sampled_from(["x" * 90 + "/" + "y" * 30, "x" * 130, "ä" * 200, "d/" * 150 + "z"])
stem = st.one_of(part, st.lists(part, min_size=2, max_size=3).map("/".join), long, st.just("__meta__"))
name = st.one_of(st.tuples(stem, st.sampled_from(["txt", "JPG", "a.b", "cls", ""])).map(".".join), stem)
name = name.filter(lambda text: ".." not in text.split("/"))
content = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"", b"7" * 512, b"x" * 1025, "folder", "link", "hard"])
)


@given(st.lists(st.tuples(name, content), min_size=1, max_size=12), st.sampled_from([0, 1, 2]))
def test_samples_are_webdatasets(members: list[Member], format: int) -> None:
    members = [
        (name, b"12" if name.lower().endswith(".cls") and isinstance(content, bytes) else content)
        for name, content in members
    ]
    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder) / "x.tar"
        try:
            write_tar(shard, members, format)
        except ValueError:  # old formats have no room for long names
            return
        try:
            expected = by_webdatasets_rules(shard)
        except ValueError:
            with pytest.raises(DecodeError, match="has two members"):
                fl.TarDataset(shard)
            return
        if not expected:
            with pytest.raises(DecodeError, match="has no samples"):
                fl.TarDataset(shard)
            return
        tar = fl.TarDataset(shard)
        assert list(tar) == expected
        order = list(range(len(tar)))[::-1] * 2
        assert tar.__getitems__(order) == [expected[i] for i in order]  # type: ignore[misc]
        assert tar.__getitems__([]) == []  # type: ignore[misc]
        again = fl.TarDataset(shard, direct_io=True)  # by the index beside it
        assert list(again) == expected


def test_names_that_are_no_text(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "x.tar", [(os.fsdecode(b"caf\xe9.txt"), b"1")], tarfile.GNU_FORMAT)
    for _ in range(2):
        assert fl.TarDataset(shard)[0] == {"__key__": os.fsdecode(b"caf\xe9"), "txt": b"1"}
    assert Path(f"{shard}.idx").exists()


def test_truncated_anywhere(tmp_path: Path) -> None:
    members = [("a.txt", b"x" * 700), ("b" * 150 + ".txt", b"y" * 512), ("c.txt", b""), ("d.txt", b"z")]
    whole = write_tar(tmp_path / "whole.tar", members).read_bytes()
    expected = by_webdatasets_rules(tmp_path / "whole.tar")
    end = len(whole.rstrip(b"\0"))
    shard = tmp_path / "x.tar"
    for size in sorted({0, 1, *range(100, len(whole), 128), end, *range(511, len(whole), 512)}):
        shard.write_bytes(whole[:size])
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                samples = list(fl.TarDataset(shard))
            except DecodeError as error:
                refused = str(error)
                assert refused.startswith(f"{shard}: ")
                assert re.search("cut short|0 bytes|not a tar", refused), refused
                continue
        # At a member's end nobody can know; but it is said.
        assert samples == expected[: len(samples)]
        assert len(told) == (size < -(-end // 512) * 512 + 1024), size
        assert all("no end marker" in str(warning.message) for warning in told)


def test_a_damaged_header(tmp_path: Path) -> None:
    (shard,) = shards_of(tmp_path, 1, 4)
    content = bytearray(shard.read_bytes())
    content[2 * 1024 + 150] ^= 1  # the checksum of the third header
    shard.write_bytes(content)
    with pytest.raises(DecodeError, match="damaged, or cut short, at byte 2,048 of 10,240"):
        fl.TarDataset(shard)


damage = st.one_of(
    st.tuples(st.just(124), st.sampled_from([b"\xff" * 12, b"\xff" * 10 + b"\xe0\x00", b"\x80" * 12, b"7" * 12])),
    st.tuples(st.just(156), st.sampled_from([b"x", b"g", b"L", b"K", b"S", b"1", b"5", b"9"])),
    st.tuples(st.integers(0, 511), st.binary(min_size=1, max_size=3)),
)


@given(st.integers(0, 9), damage, st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
@example(2, (124, b"\xff" * 10 + b"\xe0\x00"), tarfile.GNU_FORMAT)  # a size below 0: tarfile goes round for ever
def test_any_header(block: int, damage: tuple[int, bytes], format: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        members: list[Member] = [
            ("a.txt", b"x"),
            ("b" * 150 + ".txt", b"y" * 513),
            ("c.txt", b"z"),
            ("d.cls", b"1"),
        ]
        shard = write_tar(Path(folder) / "x.tar", members, format)
        content = bytearray(shard.read_bytes())
        header = content[512 * block : 512 * block + 512]
        header[damage[0] : damage[0] + len(damage[1])] = damage[1]
        header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:512]) + 8 * 32)
        content[512 * block : 512 * block + 512] = header[:512]
        shard.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                for sample in fl.TarDataset(shard):
                    assert all(value in content for name, value in sample.items() if name != "__key__")
            except DecodeError as error:
                refused = str(error)
                assert refused.startswith(str(shard))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("../a.txt", b"1")], "member '../a.txt' leads out of the archive"),
        ([("a/../../b.txt", b"1")], "leads out of the archive"),
        ([("/etc/a.txt", b"1")], "member '/etc/a.txt' leads out of the archive"),
        ([("a.cls", b"cat")], "member 'a.cls' must hold a number that fits into int64, got b'cat'"),
        (
            [("a.cls", b"")],
            "got b''; give other data another field than .cls, or read the shard",
        ),
        (
            [("a.cls", b"1"), ("b.cls", str(1 << 63).encode())],
            "'b.cls' must hold a number that fits into int64, got",
        ),
        ([("a.cls", str(-(1 << 63) - 1).encode())], "'a.cls' must hold a number that fits into int64, got"),
        ([("a.txt", b"1"), ("a.TXT", b"2")], "sample 'a' has two members 'txt'"),
        ([("a.txt", b"1"), ("b.__KEY__", b"2")], "sample 'b' has two members '__key__'"),
        ([("README", b"1")], "has no samples; members are named KEY.FIELD"),
    ],
)
def test_members_that_cannot_be(tmp_path: Path, members: list[Member], message: str) -> None:
    shard = write_tar(tmp_path / "x.tar", members)
    with pytest.raises(DecodeError, match=f"x.tar: .*{re.escape(message)}"):
        fl.TarDataset(shard)
    if ".cls" not in message:  # which a stream does not read
        with pytest.raises(DecodeError, match=f"x.tar: .*{re.escape(message)}"):
            list(fl.TarStream(shard))


@pytest.mark.parametrize("kind", ["hard", "link"])
def test_links_are_passed_over_with_a_warning(tmp_path: Path, kind: str) -> None:
    shard = write_tar(
        tmp_path / "x.tar", [("a.txt", b"1"), ("b.cls", kind), ("b.txt", b"2"), ("c.txt", kind), ("README", kind)]
    )
    for dataset in (fl.TarDataset, fl.TarStream):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            samples = list(dataset(shard))
        assert sorted(sample["__key__"] for sample in samples) == ["a", "b"]
        (warned,) = [str(one.message) for one in caught if "end marker" not in str(one.message)]
        assert re.match(rf"{shard}: member 'b\.cls' is a link .* passed over, .*--hard-dereference", warned)
    write_tar(tmp_path / "y.tar", [("a.txt", b"1"), ("README", kind), (".b.txt", kind), ("c", "folder")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(fl.TarDataset(tmp_path / "y.tar")) == len(list(fl.TarStream(tmp_path / "y.tar"))) == 1


@pytest.mark.skipif(not shutil.which("tar"), reason="no tar")
def test_the_warning_of_links_says_how_to_write_the_shard(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"1")
    os.link(tmp_path / "a.txt", tmp_path / "b.txt")
    (tmp_path / "c.txt").symlink_to("a.txt")
    write = ["tar", "-C", str(tmp_path), "-cf", str(tmp_path / "x.tar")]
    subprocess.run([*write, "a.txt", "b.txt", "c.txt"], check=True)
    with pytest.warns(UserWarning, match="member 'b.txt' is a link"):
        assert len(fl.TarDataset(tmp_path / "x.tar")) == 1
    subprocess.run([*write, "--hard-dereference", "--dereference", "a.txt", "b.txt", "c.txt"], check=True)
    assert [sample["txt"] for sample in fl.TarDataset(tmp_path / "x.tar")] == [b"1"] * 3


def test_what_is_no_shard(tmp_path: Path) -> None:
    (good,) = shards_of(tmp_path, 1)
    packed = tmp_path / "x.tar.gz"
    packed.write_bytes(gzip.compress(good.read_bytes()))
    with pytest.raises(DecodeError, match="unpack it if it is compressed, or read it in order by TarStream"):
        fl.TarDataset(packed)
    (tmp_path / "empty.tar").touch()
    with pytest.raises(DecodeError, match=r"empty\.tar: the shard is empty, it has 0 bytes"):
        fl.TarDataset([good, tmp_path / "empty.tar"])
    with pytest.raises(FileNotFoundError, match=r"none\.tar"):
        fl.TarDataset(tmp_path / "none.tar")
    with pytest.raises(FileNotFoundError, match=r"train-001\.tar"):
        fl.TarDataset(str(tmp_path / "train-{000..001}.tar"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no \*.tar in"):
        fl.TarDataset(tmp_path / "folder")
    with pytest.raises(ValueError, match="shards is an empty list"):
        fl.TarDataset([])
    for wrong in (3, [3], None):
        with pytest.raises(TypeError, match="shards must be a path or a list of them, got"):
            fl.TarDataset(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="counts down"):
        fl.TarDataset("x-{3..1}.tar")
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(1 << 20)
        file.write(b"x")
    if (
        shutil.which("tar")
        and os.system(f"tar --sparse -C {tmp_path} -cf {tmp_path}/s.tar sparse 2>/dev/null") == 0
    ):
        with pytest.raises(DecodeError, match="is stored with holes; write the shard without --sparse"):
            fl.TarDataset(tmp_path / "s.tar")


def test_members_of_a_sample_that_lie_apart_are_warned_of(tmp_path: Path) -> None:
    names = ["a.jpg", "b.jpg", "a.cls", "b.cls"]
    shard = write_tar(tmp_path / "x.tar", [(name, b"1") for name in names])
    with pytest.warns(UserWarning, match=r"members of key 'a' do not lie side by side.* tar --sort=name"):
        samples = list(fl.TarDataset(shard))
    assert samples == by_webdatasets_rules(shard)
    write_tar(shard, [(name, b"1") for name in sorted(names)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(fl.TarDataset(shard)) == 2
