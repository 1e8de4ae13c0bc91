"""Attributes that libraries change as they are used: tables, archives of arrays, unbound proxies."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import foreload as fl
from foreload.cache.fingerprint.dataset import fingerprint_of
from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.installed import is_installed
from foreload.dataset_state.sealed import find_sealed
from tests.programs import python


def table() -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(
        {
            "number": range(50),
            "text": [f"x{i}" for i in range(50)],
            "day": pandas.date_range("2020", periods=50),
            "kind": pandas.Categorical(["u", "v"] * 25),
            "mask": pandas.array([1, None] * 25, "Int64"),
        }
    )


READS: dict[str, Callable[[Any], Any]] = {
    "a row": lambda table: table.iloc[3]["number"],
    "a cell": lambda table: table.iloc[3, 0],
    "by name": lambda table: table.loc[3, "text"],
    "a column": lambda table: table.number.iloc[3],
    "at": lambda table: table.at[3, "number"],
    "values": lambda table: table.values[3],
    "a condition": lambda table: table[table.number == 3],
    "rows": lambda table: next(table.iterrows()),
    "tuples": lambda table: next(table.itertuples()),
    "groups": lambda table: table.groupby("kind", observed=True).size(),
    "an index": lambda table: table.set_index("text").loc["x3"],
    "dates": lambda table: table.day.dt.year.iloc[3],
    "texts": lambda table: table.text.str.upper().iloc[3],
}

CHANGES: dict[str, Callable[[Any], Any]] = {
    "a number": lambda table: table.iloc.__setitem__((3, 0), 9),
    "a text": lambda table: table.loc.__setitem__((3, "text"), "z"),
    "a day": lambda table: table.at.__setitem__((3, "day"), table.day[0]),
    "a kind": lambda table: table.at.__setitem__((3, "kind"), "u"),
    "a masked number": lambda table: table.at.__setitem__((1, "mask"), 9),
    "a new column": lambda table: table.__setitem__("more", 1),
    "names": lambda table: setattr(table, "columns", list("abcde")),
    "the index": lambda table: setattr(table, "index", range(1, 51)),
    "its name": lambda table: setattr(table.index, "name", "row"),
    "attributes": lambda table: table.attrs.__setitem__("unit", "m"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading_a_table_changes_nothing(read: Callable[[Any], Any]) -> None:
    held = table()
    state, known = CopiedState(SimpleNamespace(table=held)), fingerprint_of(held)
    for _ in range(3):
        read(held)
        assert state.changed_by_loading() is None
    assert fingerprint_of(held) == known


@pytest.mark.parametrize("name", ["number", "text", "kind"])
def test_columns_tell_all_of_themselves(name: str) -> None:
    column = table()[name]
    indexed = table().set_index("text")["number"]
    assert column[3] is not None
    assert indexed["x3"] is not None
    assert find_sealed(SimpleNamespace(column=column, indexed=indexed, get=indexed.get)) is None


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_of_a_table_are_seen(change: Callable[[Any], Any]) -> None:
    held = table()
    held.iloc[0]  # keeps something that it has computed
    state = CopiedState(SimpleNamespace(table=held))
    held.iloc[1]
    assert state.changed() is None
    known = fingerprint_of(held)
    change(held)
    assert state.changed() is not None
    assert fingerprint_of(held) != known


class Unbound:
    """As proxies of applications' contexts are."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("working outside of the application's context")


class Archive(torch.utils.data.Dataset[Any]):
    def __init__(self, path: Any) -> None:
        self.arrays = np.load(path)  # which holds an object without a class
        self.context = Unbound()

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return self.arrays["x"][index], unbound if index < 0 else self.arrays["y"][index]


unbound: Any = None  # a proxy while the test runs: pytest asks all variables of modules for their class


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"cache": "1MiB"}, {"num_workers": 0}], ids=str)
def test_archives_and_proxies_are_loaded(options: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "unbound", Unbound())
    np.savez(tmp_path / "arrays.npz", x=np.arange(6.0), y=np.arange(6))
    dataset = Archive(tmp_path / "arrays.npz")
    for _ in range(2):
        got = [(x.tolist(), y.tolist()) for x, y in fl.DataLoader(dataset, batch_size=3, **options)]
        assert got == [([0.0, 1.0, 2.0], [0, 1, 2]), ([3.0, 4.0, 5.0], [3, 4, 5])]


class Plain:
    def __init__(self) -> None:
        self.values = list(range(6))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> int:
        return self.values[index]


# As decorators of classes do, which leaves its objects without a __dict__ that can be asked for.
Derived = type("Derived", (torch.utils.data.Dataset,), dict(vars(Plain)))


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"num_workers": 0}, {"num_workers": 2}], ids=str)
def test_a_class_that_was_made_from_the_attributes_of_another(options: Any) -> None:
    dataset = Derived()
    with pytest.raises(TypeError):
        vars(dataset)
    for _ in range(2):
        assert [batch.tolist() for batch in fl.DataLoader(dataset, 3, **options)] == [[0, 1, 2], [3, 4, 5]]


class Dictless:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no attributes")


class Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        if name == "__module__":
            raise RuntimeError("of no module")
        return super().__getattribute__(name)


ODD = {
    "no attributes": Dictless(),
    "attributes that are none": type("Odd", (), {"__dict__": 5})(),
    "a module that is none": type("Odd", (), {"__module__": 5})(),
    "no module": Nameless("Odd", (), {})(),
    "all modules": sys.modules,
}


class Holding(torch.utils.data.Dataset[int]):
    def __init__(self, held: Any) -> None:
        self.held = held

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_whatever_a_dataset_holds_it_is_loaded(odd: Any) -> None:
    for options in ({}, {"cache": "1MiB"}):
        loader = fl.DataLoader(Holding(odd), batch_size=3, **options)
        assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]


MODULE = """
STATE = []

class Appends:
    def __getitem__(self, index):
        STATE.append(index)
"""


def test_a_users_part_of_an_installed_package_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders of a package without an __init__.py lie here and there."""
    for folder, name in (("here", "train"), ("site-packages", "util")):
        (tmp_path / folder / "namespace").mkdir(parents=True)
        (tmp_path / folder / "namespace" / f"{name}.py").write_text(MODULE)
        monkeypatch.syspath_prepend(tmp_path / folder)
    (record := tmp_path / "site-packages" / "util-1.0.dist-info").mkdir()
    (record / "RECORD").write_text("namespace/util.py,,\n")
    for name, changed in (("train", "STATE"), ("util", None)):
        dataset = importlib.import_module(f"namespace.{name}").Appends()
        state = CopiedState(dataset)
        dataset[0]
        assert state.changed_by_loading() == changed


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"RECORD": "own_part/__init__.py,,", "direct_url.json": '{"dir_info": {}}', "INSTALLER": "pip"},
        {"top_level.txt": "own_part", "direct_url.json": '{"dir_info": {}}', "INSTALLER": "pip"},
    ],
    ids=["copied there", "from a folder", "by an older tool"],
)
def test_a_package_of_ones_own_is_looked_at_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: dict[str, str]
) -> None:
    for name in ("own_part", "library"):
        (tmp_path / "site-packages" / name).mkdir(parents=True)
        (tmp_path / "site-packages" / name / "__init__.py").write_text(MODULE)
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "site-packages" / "library-2.0.dist-info").mkdir()
    (tmp_path / "site-packages" / "library-2.0.dist-info" / "RECORD").write_text("library/__init__.py,,")
    (tmp_path / "site-packages" / "library-2.0.dist-info" / "direct_url.json").write_text('{"archive_info": {}}')
    if record:
        (tmp_path / "site-packages" / "part-1.0.dist-info").mkdir()
    for name, text in record.items():
        (tmp_path / "site-packages" / "part-1.0.dist-info" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    is_installed.cache_clear()
    for name, changed in (("own_part", "STATE"), ("library", None)):
        dataset = importlib.import_module(name).Appends()
        state = CopiedState(dataset)
        dataset[0]
        assert state.changed_by_loading() == changed
        monkeypatch.delitem(sys.modules, name)
    is_installed.cache_clear()


def test_a_folder_may_have_nearly_the_name_of_the_one_that_packages_are_installed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old-site-packages-demo" / "own_part").mkdir(parents=True)
    (tmp_path / "old-site-packages-demo" / "own_part" / "__init__.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "own_part", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "old-site-packages-demo")
    is_installed.cache_clear()
    importlib.import_module("own_part")
    assert not is_installed("own_part")
    is_installed.cache_clear()
    monkeypatch.delitem(sys.modules, "own_part")


PROGRAM = """
import os, sys, torch, foreload as fl

class Reads(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return len(os.environ)

if __name__ == "__main__":
    assert "threadpoolctl" not in sys.modules
    before = dict(os.environ)
    found = [list(fl.DataLoader(Reads(), num_workers=n, batch_size=4))[0].tolist() for n in (0, 1)]
    print(dict(os.environ) == before, found == [[len(before)] * 4] * 2)
"""


def test_starting_workers_sets_no_variable_of_the_environment(tmp_path: Path) -> None:
    """An import of theirs does, which datasets that read the environment would see."""
    (tmp_path / "program.py").write_text(PROGRAM)
    done = python(tmp_path / "program.py")
    assert (done.stdout, done.returncode) == ("True True\n", 0), done.stderr


@pytest.mark.slow
def test_what_each_call_of_a_tokenizer_sets_is_no_change() -> None:
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    words = tokenizers.models.WordLevel({"a": 0, "b": 1, "[UNK]": 2, "[PAD]": 3}, unk_token="[UNK]")
    inner = tokenizers.Tokenizer(words)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]")
    held = CopiedState(SimpleNamespace(tokenizer=tokenizer))
    for options in ({"padding": "max_length", "truncation": True}, {"padding": False}, {"truncation": True}):
        tokenizer(["a b a", "b"], max_length=8, **options)
        assert held.changed() is None
    tokenizer.add_tokens(["c"])
    assert held.changed() == "_tokenizer"
    # One that the dataset itself sets is another matter.
    held = CopiedState(SimpleNamespace(tokenizer=inner))
    inner.enable_truncation(5)
    assert held.changed() is not None


def test_the_default_device_may_have_been_set_and_unset() -> None:
    """In torch 2.6, asking for it then raises."""
    script = """
import torch
from foreload.dataset_state.settings import Settings
torch.set_default_device("meta")
torch.set_default_device(None)
print(Settings(environment=None).changed())
"""
    done = python("-c", script)
    assert (done.stdout, done.returncode) == ("None\n", 0), done.stderr
