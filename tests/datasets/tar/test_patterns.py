"""Patterns of shards are expanded as WebDataset does it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foreload as fl
from foreload.datasets.tar.patterns import expand
from tests.datasets.tar.shards import write_tar


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a-{08..10}", ["a-08", "a-09", "a-10"]),
        ("a-{0..6..3}", ["a-0", "a-3", "a-6"]),
        ("{a,b}-{0..1}", ["a-0", "a-1", "b-0", "b-1"]),
        ("{a,b{0..1}}x", ["ax", "b0x", "b1x"]),
        ("{a,{b,c}d}", ["a", "bd", "cd"]),
        ("a{,b}", ["a", "ab"]),
        ("{{0..1}}", ["{0}", "{1}"]),
        ("{a}{b,{c}", ["{a}{b,{c}"]),
        ("plain", ["plain"]),
    ],
)
def test_a_pattern_stands_for_these_names(pattern: str, names: list[str]) -> None:
    assert expand(pattern) == names


PIECES = st.recursive(
    st.sampled_from(["a", "b-", ".tar", "7", "{08..10}", "{3..5}", ""]),
    lambda inner: st.lists(inner, min_size=2, max_size=3).map(lambda parts: "{" + ",".join(parts) + "}"),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.lists(PIECES, min_size=1, max_size=3).map("".join))
def test_patterns_are_webdatasets(pattern: str) -> None:
    braceexpand = pytest.importorskip("braceexpand")
    assert expand(pattern) == list(braceexpand.braceexpand(pattern))


def test_datasets_take_patterns(tmp_path: Path) -> None:
    for name in ("train-0", "train-1", "more-0", "more-1"):
        write_tar(tmp_path / f"{name}.tar", [(f"{name}.txt", b"1")])
    pattern = str(tmp_path / "{train,more}-{0..1}.tar")
    keys = [sample["__key__"] for sample in fl.TarDataset(pattern)]
    assert keys == ["train-0", "train-1", "more-0", "more-1"]
    assert sorted(sample["__key__"] for sample in fl.TarStream(pattern)) == sorted(keys)
    whole = write_tar(tmp_path / "{a,b}.tar", [("c.txt", b"1")])
    assert [sample["__key__"] for sample in fl.TarDataset(whole)] == ["c"]  # the file itself
    for wrong, words in (("x-{3..1}.tar", "counts down; .*, in 'x-"), ("x-{1..3..0}.tar", "has steps of 0")):
        with pytest.raises(ValueError, match=words):
            fl.TarDataset(wrong)
