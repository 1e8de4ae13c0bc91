#!/usr/bin/env python3
"""Hold ``_native.pyi`` against the native module: every name, argument and default, both ways.

The stub is written by hand, because its types are more precise than those that can be generated from the bindings.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path
from typing import Any

STUB = Path(__file__).parent.parent / "src" / "foreload" / "_native.pyi"

# Types that the bindings state exactly; the others (arrays, tuples, callables) the stub states more precisely.
_EXACT = {"int", "float", "bool", "str", "bytes", "None"}

# What nanobind calls an argument that the bindings do not name, which can be given by position only.
_UNNAMED = re.compile(r"arg\d*")

Names = dict[str, Any]  # a list of signatures for functions, text for attributes, names for classes


def generated(module: str) -> str:
    """Return the stub that nanobind generates from a built module."""
    from nanobind.stubgen import StubGen  # type: ignore[import-untyped]

    built = importlib.import_module(module)
    generator = StubGen(built, include_docstrings=False)
    generator.put(built)
    return str(generator.get())


def compare(stub: str, built: str) -> list[str]:
    """List what is missing, too much or different in a stub, compared with the generated one.

    >>> compare("def f(a: int = 1) -> int: ...", "def f(a: int = 2) -> int: ...")
    ['f: arguments are (a: int=1), but in the bindings (a: int=2)']
    >>> compare("class A: ...", "class B: ...")
    ['A: not in the bindings', 'B: in the bindings, but not in the stub']
    """
    theirs = _names(ast.parse(built))
    classes = {name for name, entry in theirs.items() if isinstance(entry, dict)}
    return _differences("", _names(ast.parse(stub)), theirs, _EXACT | classes)


def _names(scope: ast.Module | ast.ClassDef) -> Names:
    found: Names = {}
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {"(bases)": [ast.unparse(base) for base in node.bases], **_names(node)}
        elif isinstance(node, ast.FunctionDef):
            decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
            if "property" in decorators:
                found[node.name] = f"read-only attribute, {ast.unparse(node.returns) if node.returns else 'Any'}"
            elif any(decorator.endswith(".setter") for decorator in decorators):
                found[node.name] = found[node.name].replace("read-only ", "")
            else:
                found.setdefault(node.name, []).append((node, "staticmethod" in decorators))
        elif isinstance(node, ast.AnnAssign) and isinstance(scope, ast.ClassDef):
            constant = re.fullmatch(r"(?:ClassVar|Final)\[(.*)\]", ast.unparse(node.annotation))
            kind = f"constant, {constant[1]}" if constant else f"attribute, {ast.unparse(node.annotation)}"
            found[ast.unparse(node.target)] = kind
    return found


def _differences(inside: str, ours: Names, theirs: Names, exact: set[str]) -> list[str]:
    found = [f"{inside}{name}: not in the bindings" for name in ours if name not in theirs]
    for name, built in theirs.items():
        here = f"{inside}{name}"
        if name not in ours:
            found.append(f"{here}: in the bindings, but not in the stub")
        elif type(ours[name]) is not type(built):
            found.append(f"{here}: {_kind(ours[name])} in the stub, {_kind(built)} in the bindings")
        elif isinstance(built, dict):
            found += _differences(f"{here}.", ours[name], built, exact)
        elif name == "(bases)":
            if ours[name] != built:
                found.append(f"{inside[:-1]}: derives from {ours[name]}, but in the bindings from {built}")
        elif isinstance(built, str):
            found += _attribute(here, ours[name], built, exact)
        elif len(ours[name]) != len(built):
            found.append(f"{here}: {len(ours[name])} signatures, but {len(built)} in the bindings")
        else:
            pairs = zip(ours[name], built, strict=True)
            found += [line for own, their in pairs for line in _signature(here, own, their, exact)]
    return found


def _kind(entry: Any) -> str:
    return "a class" if isinstance(entry, dict) else "a function" if isinstance(entry, list) else "an attribute"


def _attribute(here: str, own: str, their: str, exact: set[str]) -> list[str]:
    (own_kind, _, own_type), (their_kind, _, their_type) = own.partition(", "), their.partition(", ")
    if own_kind != their_kind or not _agree(own_type, their_type, exact):
        return [f"{here}: {own}, but in the bindings {their}"]
    return []


def _signature(here: str, own: Any, their: Any, exact: set[str]) -> list[str]:
    (ours, is_static), (theirs, should_be_static) = own, their
    found = []
    if is_static != should_be_static:
        found.append(f"{here}: {'static' if is_static else 'not static'}, unlike in the bindings")
    if not _same_arguments(_arguments(ours.args), _arguments(theirs.args), exact):
        mine, built = ast.unparse(ours.args), ast.unparse(theirs.args)
        found.append(f"{here}: arguments are ({mine}), but in the bindings ({built})")
    own_type, their_type = (ast.unparse(node.returns or ast.Constant(None)) for node in (ours, theirs))
    if not _agree(own_type, their_type, exact):
        found.append(f"{here}: returns {own_type}, but in the bindings {their_type}")
    return found


def _arguments(of: ast.arguments) -> list[tuple[str, str, str, str | None]]:
    """List arguments as (kind, name, type, default)."""
    plain = [("by position", one) for one in of.posonlyargs] + [("either", one) for one in of.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(of.defaults)) + list(of.defaults)
    plain += [("by name", one) for one in of.kwonlyargs]
    defaults += of.kw_defaults
    plain += [(kind, one) for kind, one in (("*", of.vararg), ("**", of.kwarg)) if one is not None]
    defaults += [None] * (len(plain) - len(defaults))
    return [
        (
            # nanobind marks no argument called self, which cannot be given by name either.
            "either" if one.arg == "self" else kind,
            one.arg,
            ast.unparse(one.annotation) if one.annotation else "",
            ast.unparse(default) if default else None,
        )
        for (kind, one), default in zip(plain, defaults, strict=True)
    ]


def _same_arguments(ours: list[Any], theirs: list[Any], exact: set[str]) -> bool:
    return len(ours) == len(theirs) and all(
        own[0] == their[0]
        and (own[1] == their[1] or (their[0] == "by position" and _UNNAMED.fullmatch(their[1])))
        and _agree(own[2], their[2], exact)
        and own[3] == their[3]
        for own, their in zip(ours, theirs, strict=True)
    )


def _agree(own: str, their: str, exact: set[str]) -> bool:
    return own == their or not set(their.split(" | ")) <= exact


def main() -> int:
    """Compare, print what is wrong, and return the exit status."""
    wrong = compare(STUB.read_text(), generated("foreload._native"))
    for line in wrong:
        print(f"{STUB.name}: {line}", file=sys.stderr)
    if wrong:
        print("change the stub, or build foreload again if it is the module that is old", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
