"""The wording of docstrings: references (``:class:`` and the like) lead somewhere."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted([*SOURCE.rglob("*.py"), *SOURCE.rglob("*.pyi")])
}
ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?([\w.]+)(?:\(\))?`")
# The public names, which docstrings give without their module; scripts/site_docstrings.py makes links of them.
PUBLIC = {
    name.rpartition(".")[2]: name
    for page in (ROOT / "docs" / "reference").glob("*.md")
    for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)
}


class Class(NamedTuple):
    """The names of a class.

    Attributes:
        module: the module that defines it.
        bases: the names of its bases there.
        own: the names that its body binds, and the attributes that its methods set.
    """

    module: str
    bases: list[str]
    own: frozenset[str]


Meaning = Class | str | None  # of a name: a class, the full name of an import, or something without members


def bindings(body: list[ast.stmt], module: str) -> dict[str, Meaning]:
    """Return the names that statements bind, also those within ``if``, ``try`` and ``with``."""
    names: dict[str, Meaning] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            names[node.name] = class_of(node, module)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names[node.name] = None
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # (Relative imports are those of cli/profile/inside, whose files have no other package.)
            package = f"{module.rpartition('.')[0]}." if node.level else ""
            names |= {each.asname or each.name: f"{package}{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            names |= dict.fromkeys(each.id for each in ast.walk(node) if stores(each, ast.Name))
        else:
            for inner in ("body", "orelse", "finalbody"):
                names |= bindings(getattr(node, inner, []), module)
    return names


def class_of(node: ast.ClassDef, module: str) -> Class:
    set_by_methods = {each.attr for each in ast.walk(node) if stores(each, ast.Attribute)}
    bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
    return Class(module, bases, frozenset(set_by_methods | bindings(node.body, module).keys()))


def stores(node: ast.AST, kind: type[ast.Name | ast.Attribute]) -> bool:
    return isinstance(node, kind) and isinstance(node.ctx, ast.Store)


@functools.cache
def names_of(module: str) -> dict[str, Meaning]:
    return bindings(ast.parse(MODULES[module].read_text()).body, module)


def has_member(owner: Class, name: str) -> bool:
    bases = (meaning(base, owner.module) for base in owner.bases)
    return name in owner.own or any(isinstance(base, Class) and has_member(base, name) for base in bases)


def meaning(name: str, module: str) -> Meaning:
    """Return what a name means in a module; raise LookupError if that is nothing."""
    first, _, rest = name.partition(".")
    if first not in names_of(module):
        return imported(f"{PUBLIC[first]}.{rest}".rstrip(".") if first in PUBLIC else name)
    return defined(name, module)


def defined(name: str, module: str) -> Meaning:
    """Return what a name of a module's own means."""
    first, _, rest = name.partition(".")
    found = names_of(module)[first]
    return imported(f"{found}.{rest}".rstrip(".")) if isinstance(found, str) else member(found, rest)


def imported(name: str) -> Meaning:
    """Return what a full name means, in this package or another; raise LookupError if that is nothing."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if (module := ".".join(parts[:length])) in MODULES:
            return defined(".".join(parts[length:]), module) if length < len(parts) else None
    if parts[0] in vars(builtins):
        return None
    try:
        found = importlib.import_module(parts[0])
        for length, part in enumerate(parts[1:], 2):
            if not hasattr(found, part):
                importlib.import_module(".".join(parts[:length]))
            found = getattr(found, part)
    except ImportError:
        raise LookupError(name) from None
    return None


def member(found: Class | None, name: str) -> Meaning:
    if name and (found is None or not has_member(found, name)):
        raise LookupError(name)
    return None if name else found


def leads_somewhere(name: str, module: str, owner: Class | None) -> bool:
    try:
        if owner is None or not has_member(owner, name):
            meaning(name, module)
    except LookupError:
        return False
    return True


def docstrings(node: ast.AST, module: str, owner: Class | None = None) -> Iterator[tuple[int, str, Class | None]]:
    """Yield the line and text of each docstring, of attributes too, and the class that it is in."""
    owner = class_of(node, module) if isinstance(node, ast.ClassDef) else owner
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            yield child.lineno, str(child.value.value), owner
        else:
            yield from docstrings(child, module, owner)


def test_references_in_docstrings_lead_somewhere() -> None:
    lost = [
        f"{path.relative_to(SOURCE)}:{line}: {name}"
        for module, path in MODULES.items()
        for line, text, owner in docstrings(ast.parse(path.read_text()), module)
        for name in ROLE.findall(text)
        if not leads_somewhere(name, module, owner)
    ]
    assert lost == []
