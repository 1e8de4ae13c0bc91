"""State that no attribute shows: of OpenCV, cffi, compiled code and libraries, and variables named by texts."""

from __future__ import annotations

import ssl
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.names import draws_unseen
from foreload.dataset_state.sealed import find_sealed

OF_OPENCV = """
import cv2, numpy as np, torch
import cv2 as vision
from cv2 import randu

class Drawing:
    def draw(self): return cv2.randn(np.zeros(3), 0, 1)

def by_alias(): return vision.randShuffle([1])
def by_name(): return randu([1], 0, 1)
def within():
    import cv2
    return [cv2.setRNGSeed(1) for _ in range(2)]
def other(): return cv2.resize([1], 2), np.random.randn(3), torch.randn(3)
"""


@pytest.fixture
def of_opencv(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user's that uses OpenCV, which need not be installed."""
    library = ModuleType("cv2")
    for name in ("randn", "randu", "randShuffle", "setRNGSeed", "resize"):
        setattr(library, name, lambda *_: None)
    monkeypatch.setitem(sys.modules, "cv2", library)
    module = ModuleType("of_opencv")
    monkeypatch.setitem(sys.modules, "of_opencv", module)
    exec(OF_OPENCV, vars(module))
    return module


@pytest.mark.parametrize(
    ("name", "drawing"),
    [
        ("by_alias", "cv2.randShuffle"),
        ("by_name", "cv2.randu"),
        ("within", "cv2.setRNGSeed"),
        ("other", None),
    ],
)
def test_code_that_draws_from_opencvs_generator_is_found(of_opencv: Any, name: str, drawing: str | None) -> None:
    assert draws_unseen(getattr(of_opencv, name)) == drawing


def test_such_code_of_a_dataset_is_loaded_by_the_calling_thread(of_opencv: Any) -> None:
    assert "cv2.randn" in str(CopiedState(of_opencv.Drawing()).untold)
    assert CopiedState(of_opencv.other).untold is None


class Compiled(ssl.SSLContext):
    """Stands for a class of the user's that is compiled: it consists of more than its attributes."""


@pytest.mark.parametrize("is_compiled", [True, False])
def test_objects_of_compiled_code_of_the_users_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_compiled: bool
) -> None:
    module = ModuleType("sampling")
    suffix = EXTENSION_SUFFIXES[0] if is_compiled else ".py"
    module.__file__ = str(tmp_path / f"sampling{suffix}")
    monkeypatch.setitem(sys.modules, "sampling", module)
    kind = type("Sampler", (Compiled,), {"__module__": "sampling"})
    dataset = SimpleNamespace(sampler=kind(ssl.PROTOCOL_TLS_CLIENT))
    assert (find_sealed(dataset) is not None) == is_compiled


def test_memory_of_cffi_is_found() -> None:
    cffi = pytest.importorskip("cffi")
    ffi = cffi.FFI()
    assert find_sealed(SimpleNamespace(count=ffi.new("int*"))) == "count"
    assert find_sealed(SimpleNamespace(library=ffi)) is None


LIBRARY = """
import numpy as np

class Randomizable:
    R = np.random.RandomState(0)

class Lies:
    @property
    def __class__(self): raise RuntimeError("outside of the application's context")

class Noise(Randomizable):
    context = Lies()
    def __call__(self, x): return x + self.R.rand()
"""


def test_a_generator_that_objects_of_a_library_share_is_watched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As MONAI's transforms share one."""
    folder = tmp_path / "site-packages"
    (folder / "noises-1.0.dist-info").mkdir(parents=True)
    (folder / "noises-1.0.dist-info" / "RECORD").write_text("noises.py,,")
    (folder / "noises.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(folder)
    import noises

    dataset = SimpleNamespace(noise=noises.Noise(), data=np.zeros(2))
    held = CopiedState(dataset)
    assert held.changed_by_loading() is None
    dataset.noise(0)
    assert held.changed_by_loading() == "R"
    monkeypatch.delitem(sys.modules, "noises")


BY_TEXT = """
import sys
count, sizes = 0, [1]

class ByGlobals:
    def load(self): globals()["count"] += 1

class ByModules:
    def load(self): sys.modules[__name__].count += 1

class OfModel:
    def load(self): return [each for each in self.model.modules()], "tqdm" in sys.modules
"""


@pytest.mark.parametrize(("name", "is_seen"), [("ByGlobals", True), ("ByModules", True), ("OfModel", False)])
def test_variables_that_code_names_by_a_text_are_watched(
    monkeypatch: pytest.MonkeyPatch, name: str, is_seen: bool
) -> None:
    module: Any = ModuleType("by_text")
    monkeypatch.setitem(sys.modules, "by_text", module)
    exec(BY_TEXT, vars(module))
    held = CopiedState(getattr(module, name)())
    assert held.changed() is None
    module.count += 1
    assert (held.changed() == "count") == is_seen
