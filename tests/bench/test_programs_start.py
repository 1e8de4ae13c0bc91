"""The programs of ``benchmarks/`` that are run as modules can be: they import what is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FILES = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md"), ROOT / "benchmarks/run_all.sh"]
FILES += [*ROOT.glob("scripts/*.sh"), ROOT / "Makefile"]
MODULES = sorted({name for file in FILES for name in re.findall(r" -m (benchmarks\.[\w.]+)", file.read_text())})


def test_modules_are_found() -> None:
    assert {"benchmarks.peers.run", "benchmarks.storage.run", "benchmarks.tar_stream"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_can_be_imported(name: str) -> None:
    assert importlib.import_module(name)
