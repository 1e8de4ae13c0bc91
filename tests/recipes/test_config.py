"""DataLoaderConfig: what it takes, what it says, and what it is after a file."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foreload as fl
from foreload import DataLoaderConfig

FIELDS = {
    "batch_size": 32,
    "num_workers": 4,
    "pin_memory": True,
    "persistent_workers": True,
    "prefetch_factor": 2,
    "drop_last": False,
    "shuffle": True,
    "collate_fn": None,
    "memory_efficient": False,
    "max_memory_usage": 0.8,
    "pin_memory_device": "cuda",
    "non_blocking": True,
    "generator_seed": None,
    "custom_sampler": None,
    "custom_batch_sampler": None,
    "enable_monitoring": True,
    "log_loading_stats": True,
}

configs = st.builds(
    DataLoaderConfig,
    batch_size=st.none() | st.integers(1, 999),
    num_workers=st.integers(0, 64) | st.just("auto"),
    prefetch_factor=st.none() | st.integers(1, 9),
    shuffle=st.booleans(),
    max_memory_usage=st.floats(0.01, 1),
    pin_memory_device=st.sampled_from(["", "cuda", "cuda:1", "xpu", "mps", "cpu"]),
    generator_seed=st.none() | st.integers(-(1 << 63), (1 << 64) - 1),
)


def test_the_fields_are_these_in_this_order() -> None:
    assert dataclasses.asdict(DataLoaderConfig()) == FIELDS
    assert [field.name for field in dataclasses.fields(DataLoaderConfig)] == list(FIELDS)
    assert list(inspect.signature(DataLoaderConfig).parameters) == list(FIELDS)


@given(configs)
def test_it_is_the_same_after_text(config: DataLoaderConfig) -> None:
    pytest.importorskip("yaml")
    assert DataLoaderConfig.from_json(config.to_json()) == config
    assert DataLoaderConfig.from_yaml(config.to_yaml()) == config


@pytest.mark.parametrize("language", ["json", "yaml"])
@pytest.mark.parametrize("as_what", [str, Path])
def test_it_is_the_same_after_a_file(language: str, as_what: Any, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    config = DataLoaderConfig(batch_size=7, generator_seed=3)
    path = as_what(tmp_path / "größe.conf")
    text = getattr(config, f"to_{language}")(path)
    assert Path(path).read_text(encoding="utf-8") == text
    read = getattr(DataLoaderConfig, f"from_{language}")
    assert read(path) == read(text) == config
    Path(path).write_text('{"batch_size": 5}')
    assert read(path) == DataLoaderConfig(batch_size=5)
    with pytest.raises(FileNotFoundError, match=r"there is no file '.*missing"):
        read(str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "missing")
    Path(path).write_text("[1, 2]")
    with pytest.raises(TypeError, match=r"größe.conf' must hold the fields .* is a list"):
        read(path)
    Path(path).write_text("{")
    with pytest.raises(ValueError, match=f"größe.conf' is not valid {language.upper()}: "):
        read(path)
    with pytest.raises(ValueError, match="unknown field 'batchsize'; there are batch_size, num_workers"):
        read('{"batchsize": 5}')
    with pytest.raises(TypeError, match=f"collate_fn is code, which cannot be read from {language.upper()}"):
        read('{"collate_fn": "len"}')
    with pytest.raises(ValueError, match="batch_size must be 1 or more, got 0"):
        read('{"batch_size": 0}')


@pytest.mark.parametrize("name", ["collate_fn", "custom_sampler", "custom_batch_sampler"])
def test_code_cannot_be_written(name: str) -> None:
    config = DataLoaderConfig(**{name: len if name == "collate_fn" else [1]})
    with pytest.raises(TypeError, match=rf"{name} is code.*replace\(config, {name}=None\)"):
        config.to_json()
    assert json.loads(dataclasses.replace(config, **{name: None}).to_json()) == FIELDS


def test_without_yaml_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ImportError, match=r"YAML needs PyYAML: pip install pyyaml"):
        DataLoaderConfig().to_yaml()


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("batch_size", 0, ValueError, "batch_size must be 1 or more, got 0"),
        ("batch_size", 1.5, TypeError, "batch_size must be an int or None, got 1.5"),
        ("num_workers", -1, ValueError, "num_workers must be 0 or more, got -1"),
        ("num_workers", None, TypeError, "num_workers must be an int or 'auto', got None"),
        ("num_workers", "many", TypeError, "num_workers must be an int or 'auto', got 'many'"),
        ("pin_memory", 1, TypeError, "pin_memory must be True or False, got 1"),
        ("shuffle", None, TypeError, "shuffle must be True or False, got None"),
        ("prefetch_factor", 0, ValueError, "prefetch_factor must be 1 or more, got 0"),
        ("max_memory_usage", 0, ValueError, "max_memory_usage is a share, above 0 and at most 1, got 0"),
        ("max_memory_usage", 80, ValueError, "max_memory_usage is a share, above 0 and at most 1, got 80"),
        ("max_memory_usage", "80%", TypeError, "max_memory_usage must be a number"),
        ("pin_memory_device", None, TypeError, "pin_memory_device must be a str such as 'cuda', got None"),
        (
            "pin_memory_device",
            "cdua",
            ValueError,
            "pin_memory_device must be a kind of device such as 'cuda', got 'cdua'",
        ),
        ("generator_seed", "0", TypeError, "generator_seed must be an int or None, got '0'"),
        ("generator_seed", 1 << 64, ValueError, r"generator_seed must be below 2\*\*64"),
        ("collate_fn", 3, TypeError, "collate_fn must be callable or None, got 3"),
        ("custom_sampler", 3, TypeError, "custom_sampler must be something to iterate over, or None, got 3"),
    ],
)
def test_what_makes_no_sense_is_named(field: str, value: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        DataLoaderConfig(**{field: value})


def test_single_samples_have_no_last_batch() -> None:
    with pytest.raises(ValueError, match="drop_last leaves out a last batch, but batch_size=None"):
        DataLoaderConfig(batch_size=None, drop_last=True)
    assert DataLoaderConfig(batch_size=None, drop_last=True, custom_batch_sampler=[[0]]).drop_last


def test_one_sampler_at_most() -> None:
    with pytest.raises(ValueError, match="custom_sampler and custom_batch_sampler cannot both be given"):
        DataLoaderConfig(custom_sampler=[0], custom_batch_sampler=[[0]])
    assert fl.DataLoaderConfig is DataLoaderConfig


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "none" / "loader.json"
    with pytest.raises(FileNotFoundError) as caught:
        DataLoaderConfig().to_json(path)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("name", ["custom_sampler", "custom_batch_sampler"])
@pytest.mark.parametrize("sampler", ["012", b"012"])
def test_a_text_is_no_sampler(name: str, sampler: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} must be something to iterate over, or None, got b?'012'"):
        DataLoaderConfig(**{name: sampler})


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (DataLoaderConfig.from_json, '{"batch_size": 4, "shuffle": true, "batch_size": 8}'),
        (DataLoaderConfig.from_yaml, "batch_size: 4\nshuffle: true\nbatch_size: 8\n"),
    ],
)
def test_a_field_is_there_once(read: Any, text: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(text)
    for source in (text, tmp_path / "config"):
        with pytest.raises(
            ValueError, match=r"is not valid (JSON|YAML): the field 'batch_size' occurs 2 times; keep one"
        ):
            read(source)


@pytest.mark.parametrize("language", ["json", "yaml"])
def test_a_file_may_begin_with_a_byte_order_mark(language: str, tmp_path: Path) -> None:
    """As editors of Windows write it."""
    path = tmp_path / "config"
    path.write_text('{"batch_size": 3}', encoding="utf-8-sig")
    assert getattr(DataLoaderConfig, f"from_{language}")(path).batch_size == 3
