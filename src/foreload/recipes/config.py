"""The configuration of a loader, which can be written to JSON or YAML and read again."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch.utils.data import Sampler

from foreload.checks import check_int, check_share

__all__ = ["DataLoaderConfig", "check_config"]

_CODE = ("collate_fn", "custom_sampler", "custom_batch_sampler")
_SWITCHES = (
    "pin_memory",
    "persistent_workers",
    "drop_last",
    "shuffle",
    "memory_efficient",
    "non_blocking",
    "enable_monitoring",
    "log_loading_stats",
)


@dataclass
class DataLoaderConfig:
    """The configuration of an :class:`~foreload.EfficientDataLoader`. The defaults work with and without a GPU.

    Args:
        batch_size, drop_last, collate_fn: as in torch's DataLoader; with ``batch_size=None`` it delivers single
            samples.
        num_workers: the number of workers; 0 loads in the calling thread; ``"auto"`` chooses.
        pin_memory: page-lock batches, if there is an accelerator of the kind ``pin_memory_device``.
        persistent_workers, prefetch_factor: as in torch; without workers they are ignored.
        shuffle: use a new order every epoch; ignored with a sampler or an iterable dataset, which have an order.
        memory_efficient: make as few batches ahead as possible, whatever ``prefetch_factor`` is, and keep the
            memory of only one batch for later ones.
        max_memory_usage: the share of the memory that everything on the machine, or in the container, may use
            together; if it is exceeded and ``enable_monitoring`` is on, there is a warning.
        pin_memory_device: the kind of accelerator that batches are page-locked for.
        non_blocking: whether :meth:`EfficientDataLoader.to` copies without waiting.
        generator_seed: the seed of the generator that the order is drawn from; runs with the same seed have the
            same order, which is torch's for a generator with that seed.
        custom_sampler: a sampler of indices.
        custom_batch_sampler: a sampler of batches; ``batch_size``, ``shuffle`` and ``drop_last`` are ignored then.
        enable_monitoring: measure, for :meth:`EfficientDataLoader.get_stats`.
        log_loading_stats: log a line at each epoch's end, to the logger ``foreload``, as INFO.

    Raises:
        ValueError, TypeError: a field has a value that makes no sense; the message names it.

    >>> config = DataLoaderConfig(batch_size=8, generator_seed=1)
    >>> DataLoaderConfig.from_json(config.to_json()) == config
    True
    >>> DataLoaderConfig(batch_size=0)
    Traceback (most recent call last):
    ValueError: batch_size must be 1 or more, got 0
    """

    batch_size: int | None = 32
    num_workers: int | Literal["auto"] = 4
    pin_memory: bool = True
    persistent_workers: bool = True
    prefetch_factor: int | None = 2
    drop_last: bool = False
    shuffle: bool = True
    collate_fn: Callable[[list[Any]], Any] | None = None
    memory_efficient: bool = False
    max_memory_usage: float = 0.8
    pin_memory_device: str = "cuda"
    non_blocking: bool = True
    generator_seed: int | None = None
    custom_sampler: Sampler[Any] | Iterable[Any] | None = None
    custom_batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None
    enable_monitoring: bool = True
    log_loading_stats: bool = True

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        self.max_memory_usage = check_share(self.max_memory_usage)
        if not (isinstance(self.num_workers, str) and self.num_workers == "auto"):
            self.num_workers = check_int("num_workers", self.num_workers, 0, otherwise=" or 'auto'")
        for name, least in (("batch_size", 1), ("prefetch_factor", 1), ("generator_seed", -(1 << 63))):
            if getattr(self, name) is not None:
                setattr(self, name, check_int(name, getattr(self, name), least, otherwise=" or None"))
        if self.generator_seed is not None and self.generator_seed >= 1 << 64:
            raise ValueError(f"generator_seed must be below 2**64, got {self.generator_seed}")
        if not isinstance(self.pin_memory_device, str):
            raise TypeError(f"pin_memory_device must be a str such as 'cuda', got {self.pin_memory_device!r}")
        try:
            torch.device(self.pin_memory_device or "cuda")
        except (RuntimeError, ValueError) as error:  # a slip of the pen would turn page-locking off
            raise ValueError(
                "pin_memory_device must be a kind of device such as 'cuda', got "
                f"{self.pin_memory_device!r}: {error}"
            ) from None
        if self.collate_fn is not None and not callable(self.collate_fn):
            raise TypeError(f"collate_fn must be callable or None, got {self.collate_fn!r}")
        for name in ("custom_sampler", "custom_batch_sampler"):
            sampler = getattr(self, name)
            is_text = isinstance(sampler, (str, bytes, np.generic))  # which no loader draws indices from
            if is_text or not (sampler is None or hasattr(sampler, "__iter__") or hasattr(sampler, "__getitem__")):
                raise TypeError(f"{name} must be something to iterate over, or None, got {sampler!r}")
        if self.drop_last and self.batch_size is None and self.custom_batch_sampler is None:
            raise ValueError(
                "drop_last leaves out a last batch, but batch_size=None delivers single samples; drop one"
            )
        if self.custom_sampler is not None and self.custom_batch_sampler is not None:
            raise ValueError("custom_sampler and custom_batch_sampler cannot both be given; leave one None")

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the configuration as JSON text, and write it to ``path`` if one is given.

        Raises:
            TypeError: a field holds code, which cannot be written.
        """
        return _written(json.dumps(self._plain("JSON"), indent=2) + "\n", path)

    def to_yaml(self, path: str | Path | None = None) -> str:
        """Return the configuration as YAML text, and write it to ``path`` if one is given.

        Raises:
            TypeError: a field holds code, which cannot be written.
            ImportError: PyYAML is not installed.
        """
        return _written(_yaml().safe_dump(self._plain("YAML"), sort_keys=False), path)

    @classmethod
    def from_json(cls, source: str | Path) -> Self:
        """Read a configuration from a JSON file or from JSON text. Missing fields have their defaults.

        Raises:
            FileNotFoundError: ``source`` is neither a file nor the text of a configuration.
            ValueError, TypeError: it is not valid JSON, or not a configuration; the message names the field.
        """
        return cls._read(source, _load_json, "JSON")

    @classmethod
    def from_yaml(cls, source: str | Path) -> Self:
        """Read a configuration from a YAML file or from YAML text; see :meth:`from_json`."""
        return cls._read(source, _load_yaml, "YAML")

    def _plain(self, language: str) -> dict[str, Any]:
        for name in _CODE:
            if getattr(self, name) is not None:
                raise TypeError(
                    f"{name} is code, which cannot be written to {language}; write "
                    f"dataclasses.replace(config, {name}=None), and set it again after reading"
                )
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def _read(cls, source: str | Path, parse: Callable[[str], Any], language: str) -> Self:
        if not isinstance(source, (str, os.PathLike)):
            raise TypeError(f"source must be a path or {language} text, got {type(source).__name__}")
        is_file = not isinstance(source, str) or os.path.isfile(source)
        where = repr(str(source)) if is_file else "the text"
        try:
            text = Path(source).read_text(encoding="utf-8-sig") if is_file else str(source)
            values = parse(text)
        except RecursionError:
            raise ValueError(
                f"{where} is nested too deeply for a configuration; give a flat mapping of fields"
            ) from None
        except ValueError as error:
            if not is_file and "\n" not in text and "{" not in text:
                raise FileNotFoundError(f"there is no file {source!r}, and it is not {language} either") from None
            raise ValueError(f"{where} is not valid {language}: {error}") from error
        if values is None and is_file:
            values = {}  # an empty file
        if not isinstance(values, dict):
            if not is_file and "\n" not in text:
                raise FileNotFoundError(f"there is no file {source!r}, and it is not a configuration either")
            raise TypeError(
                f"{where} must hold the fields of a DataLoaderConfig, but is a {type(values).__name__}"
            )
        known = [field.name for field in dataclasses.fields(cls)]
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"{where} has the unknown field {name!r}; there are {', '.join(known)}")
            if name in _CODE and value is not None:
                raise TypeError(f"{name} is code, which cannot be read from {language}; set it after reading")
        return cls(**values)


def check_config(config: Any) -> DataLoaderConfig:
    """Return an argument, the default configuration for None; raise TypeError if it is not a configuration."""
    if config is None:
        return DataLoaderConfig()
    if not isinstance(config, DataLoaderConfig):
        raise TypeError(f"config must be a DataLoaderConfig, got {type(config).__name__}")
    return config


def _written(text: str, path: str | Path | None) -> str:
    if path is None:
        return text
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):  # a pipe, for example
        Path(target).write_text(text, encoding="utf-8")
        return text
    part = Path(f"{target}.{secrets.token_hex(8)}.part")
    try:
        with part.open("x", encoding="utf-8") as file:
            file.write(text)
        part.replace(target)
    except OSError as error:
        error.filename = target  # not the other file, which nobody has asked for
        raise
    finally:
        part.unlink(missing_ok=True)
    return text


def _load_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_once)


def _once(fields: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return fields by name; raise ValueError if one is there twice, of which either may be meant."""
    names = [name for name, _ in fields]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"the field {twice[0]!r} occurs {names.count(twice[0])} times; keep one")
    return dict(fields)


def _load_yaml(text: str) -> Any:
    yaml = _yaml()
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        if isinstance(tree, yaml.MappingNode):
            _once([(key.value, None) for key, _ in tree.value if isinstance(key, yaml.ScalarNode)])
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _yaml() -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("YAML needs PyYAML: pip install pyyaml") from error
    return yaml
