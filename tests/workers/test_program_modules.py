"""Values that code reaches through modules and objects are compared in processes that are not forked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.programs import python

SETTINGS = """
size = 1
class Config: width = 1
"""

INSIDE = """
class RelativeFolder:
    def __getitem__(self, index):
        from . import settings
        return settings.size
class RelativeFile:
    def __getitem__(self, index):
        from .settings import size
        return size
"""

PLUGIN = """
import registry
registry.KNOWN["plus"] = len
"""

LOOKS = """
import builtins, collections, contextvars, functools, gettext, importlib, json, multiprocessing, pickle, re, sys
import threading, weakref
import numpy as np, torch
import package.inside, package.settings, package.settings as alias, registry
from foreload.dataset_state.copied import CopiedState

VARIABLE = contextvars.ContextVar("VARIABLE", default=1)
LOCAL = threading.local()
LOCAL.size = 1
ITEMS = DRAWN = None
class Item:
    def __init__(self, number): self.number = number
ALL, MORE = {Item(1), Item(2), Item(3)}, {Item(1), Item(2)}
LOCK, WORD, KEYS = threading.Lock(), re.compile("a"), weakref.WeakKeyDictionary()
@functools.singledispatch
def kind_of(sample): return "other"

class Scaled:
    factor = 1
    def __call__(self, index): return index * Scaled.factor
class InSet:
    factor = 1
    def __call__(self, index): return index * InSet.factor

class Same:
    def __getitem__(self, index):
        with LOCK: return ALL, WORD.match("a"), KEYS, kind_of(index), np.add, torch.float32
class SameSize:  # a name that a module has too
    def __getitem__(self, index): return getattr(self, "size", 0)
class SameMany:
    def __init__(self): self.items, self.names = torch.zeros(1000), [{"name": str(item)} for item in range(30_000)]
    def __getitem__(self, index): return self.names[index]
class Nested:
    def __getitem__(self, index): return package.settings.size
class Alias:
    def __getitem__(self, index): return alias.size
class FromWithin:
    def __getitem__(self, index):
        from package import settings
        return settings.size
class AsWithin:
    def __getitem__(self, index):
        import package.settings as other
        return other.size
class ClassOfModule:
    def __getitem__(self, index): return package.settings.Config.width
class HeldModule:
    settings = alias
    def __getitem__(self, index): return self.settings.size
class ByText:
    name = "size"
    def __getitem__(self, index): return getattr(alias, self.name)
class AllNames:
    name = "size"
    def __getitem__(self, index): return alias.__dict__[self.name]
class ByModulesName:
    def __getitem__(self, index): return importlib.import_module("package.settings").size
class Global:
    def __getitem__(self, index): return globals()["ITEMS"]
class Context:
    def __getitem__(self, index): return VARIABLE.get()
class OfThread:
    def __getitem__(self, index): return LOCAL.size
class Registered:
    def __getitem__(self, index): return registry.KNOWN["plus"]([index])
class Objects:
    def __getitem__(self, index): return [item.number for item in MORE]
class Builtin:
    def __getitem__(self, index): return _("text")
class BehindMany:
    def __init__(self): self.items, self.steps = [(str(item), item) for item in range(30_000)], []
    def __getitem__(self, index): return [step(index) for step in self.steps]
class Among(BehindMany): pass
class Held:
    def __init__(self): self.items = {InSet()}
    def __getitem__(self, index): return [item(index) for item in self.items]
class Unknown:
    def __getitem__(self, index): return next(DRAWN)
class Derived:
    def __getitem__(self, index): return Item.__subclasses__()

def look(held): return [[name, each.differs] for name, each in pickle.loads(held)]

if __name__ == "__main__":
    package.settings.size = package.settings.Config.width = LOCAL.size = Scaled.factor = InSet.factor = 2
    VARIABLE.set(2)
    ITEMS, DRAWN = [1], (item for item in [1])
    MORE.add(Item(3))
    builtins._ = gettext.gettext
    importlib.import_module("plugin")
    kind_of(1)
    KEYS[Item] = 1
    kinds = [value for value in list(globals().values()) if isinstance(value, type)]
    kinds = [kind for kind in kinds if hasattr(kind, "__getitem__") and kind.__module__ == "__main__"]
    kinds += [package.inside.RelativeFolder, package.inside.RelativeFile]
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        parts = {kind.__name__: kind() for kind in kinds}
        parts["BehindMany"].steps.append(Scaled())
        parts["Among"].items.append(("last", Scaled()))
        held = pickle.dumps([(name, CopiedState(part)) for name, part in parts.items()])
        json.dump(pool.apply(look, (held,)), sys.stdout)
"""


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_what_code_reaches_is_compared(method: str, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "settings.py").write_text(SETTINGS)
    (tmp_path / "package" / "inside.py").write_text(INSIDE)
    (tmp_path / "registry.py").write_text("KNOWN = {}")
    (tmp_path / "plugin.py").write_text(PLUGIN)
    (tmp_path / "script.py").write_text(LOOKS)
    done = python(tmp_path / "script.py", method, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = dict(json.loads(done.stdout))
    for name in [name for name in found if name.startswith("Same")]:
        assert found.pop(name) is None, name
    unknown = {name: found.pop(name) for name in ("Unknown", "Derived")}
    for name, differs in unknown.items():
        assert differs.startswith("nothing tells whether"), differs
        assert f"which the code of {name} uses, is the same" in differs
    held = {"BehindMany": "Scaled", "Among": "Scaled", "Held": "InSet"}
    for name, differs in found.items():
        assert differs is not None, name
        assert f"the code of {name}, or" in differs or f"the code of {held.get(name)}, or" in differs, differs
    assert len(found) == 20
