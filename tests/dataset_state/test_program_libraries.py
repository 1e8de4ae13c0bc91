"""Of libraries, it is compared what the user's code sets in them, whatever else has the same names."""

from __future__ import annotations

import functools
import math
import mimetypes
import pickle
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile
from torch.utils.data import TensorDataset

from foreload.dataset_state.program.libraries import LibraryState, UserNames
from foreload.dataset_state.program.touched import codes_of, touched_in

TRUNCATED = ("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES", True)
METHOD = ("torch.utils.data", "TensorDataset.__getitem__", True)
TYPES = ("mimetypes", "types_map", False)


def _touched(text: str) -> set[tuple[str, str, bool]]:
    return set(touched_in(compile(text, "script.py", "exec"), {}))


@pytest.mark.parametrize(
    ("text", "touched"),
    [
        ("from PIL import ImageFile; ImageFile.LOAD_TRUNCATED_IMAGES = True", {TRUNCATED}),
        ("import PIL.ImageFile; PIL.ImageFile.LOAD_TRUNCATED_IMAGES = True", {TRUNCATED}),
        ("import PIL.ImageFile as images; images.LOAD_TRUNCATED_IMAGES = True", {TRUNCATED}),
        ("import PIL.ImageFile as images; images.LOAD_TRUNCATED_IMAGES |= True", {TRUNCATED}),
        ("import PIL.ImageFile as images\ndel images.LOAD_TRUNCATED_IMAGES", {TRUNCATED}),
        ("from PIL import ImageFile; setattr(ImageFile, 'LOAD_TRUNCATED_IMAGES', True)", {TRUNCATED}),
        ("import PIL.ImageFile; images = PIL.ImageFile; images.LOAD_TRUNCATED_IMAGES = True", {TRUNCATED}),
        ("def set():\n  from PIL import ImageFile\n  ImageFile.LOAD_TRUNCATED_IMAGES = True", {TRUNCATED}),
        ("from PIL import ImageFile\ndef set():\n  ImageFile.LOAD_TRUNCATED_IMAGES = True", {TRUNCATED}),
        ("def set():\n  import PIL.ImageFile as f\n  def inner(): f.LOAD_TRUNCATED_IMAGES = True", {TRUNCATED}),
        ("from torch.utils.data import TensorDataset; TensorDataset.__getitem__ = None", {METHOD}),
        ("import torch\ntorch.utils.data.TensorDataset.__getitem__ = None", {METHOD}),
        ("import mimetypes; mimetypes.types_map['.a'] = 'a'", {TYPES}),
        ("import mimetypes; mimetypes.types_map.update(a='a')", {TYPES}),
        ("from mimetypes import types_map; types_map['.a'] = 'a'", {TYPES}),
        ("import mimetypes\ndef use(): return len(mimetypes.types_map)", {TYPES}),
        ("import torch\ndef f():\n  d = torch.utils.data\n  def g(): d.TensorDataset.__getitem__ = 1", {METHOD}),
        (
            "import torch\ndef f(setattr=setattr): setattr(torch.utils.data.TensorDataset, '__getitem__', 1)",
            {METHOD},
        ),
        ("import re, math, tempfile\nclass A:\n  def f(self): self._cache = self.nan = self.tempdir = 1", set()),
        ("from PIL import Image\nclass A:\n  def f(self, df): self.ID = df.ID", set()),
        ("import re\ndef f(re): re._cache = 1", set()),
        ("import re\nx = y = re\nself.z = 1", set()),
        ("from . import math\nmath.pi = 1", set()),
    ],
)
def test_what_is_set_in_libraries_is_found(text: str, touched: set[tuple[str, str, bool]]) -> None:
    assert _touched(text) == touched


def _sent(text: str, used: set[str] | None = None) -> bytes:
    names = UserNames()
    names.used, names.texts, names.touched = used or set(), set(), _touched(text)
    return pickle.dumps(LibraryState(names))


def test_constants_are_taken_over_whatever_else_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mimetypes.types_map, ".sample", "text/sample")
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", math.nan)
    sent = _sent(
        "import mimetypes; mimetypes.types_map['.sample'] = 'text/sample'\n"
        "from PIL import Image, ImageFile; ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS = True, nan"
    )
    assert pickle.loads(sent).differs() is None
    monkeypatch.undo()
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)
    state = pickle.loads(sent)
    assert ImageFile.LOAD_TRUNCATED_IMAGES
    assert math.isnan(Image.MAX_IMAGE_PIXELS or 0)
    assert state.differs() == "mimetypes.types_map"


def test_functions_in_the_place_of_a_librarys_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "load", functools.partial(np.load, allow_pickle=True))
    sent = _sent("import numpy as np; np.load = None")
    assert pickle.loads(sent).differs() is None
    monkeypatch.undo()
    assert pickle.loads(sent).differs() == "numpy.load"
    sent = _sent("from torch.utils.data import TensorDataset; TensorDataset.__getitem__ = None")
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda self, index: 0)
    assert pickle.loads(sent).differs() == "torch.utils.data.TensorDataset.__getitem__"


def test_what_functions_of_libraries_set_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    pd = pytest.importorskip("pandas")
    with pd.option_context("display.precision", 3):
        sent = _sent("", {"set_option"})
        assert pickle.loads(sent).differs() is None
    assert pickle.loads(sent).differs() == "pandas._config.config._global_config"
    monkeypatch.setattr(mimetypes, "types_map", {".a": "text/a"})
    sent = _sent("", {"add_type"})
    assert pickle.loads(sent).differs() is None
    mimetypes.types_map[".b"] = "text/b"
    assert pickle.loads(sent).differs() == "mimetypes.types_map"


def test_variables_of_lazy_modules_are_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = _sent("import torch; torch.backends.cudnn.benchmark_limit = 11")
    module = sys.modules["torch.backends.cudnn"]
    assert "benchmark_limit" not in vars(module)
    state = pickle.loads(sent)
    assert [*state._set] == [("torch.backends.cudnn", "benchmark_limit")]
    assert state.differs() is None


class _Proxy:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("outside of a request")


def test_objects_of_modules_that_raise_when_they_are_asked_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("module_of_proxies")
    module.current = _Proxy()
    monkeypatch.setitem(sys.modules, "module_of_proxies", module)
    LibraryState(UserNames())


def test_what_cells_of_a_notebook_set_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    main: Any = ModuleType("__main__")
    main.In = ["", "from PIL import ImageFile", "this is no Python", "ImageFile.LOAD_TRUNCATED_IMAGES = await x"]
    main.ImageFile = ImageFile
    monkeypatch.setitem(sys.modules, "__main__", main)
    touched = [each for code in codes_of("__main__") for each in touched_in(code, vars(main))]
    assert touched == [TRUNCATED]
