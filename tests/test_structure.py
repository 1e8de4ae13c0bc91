"""The structure that docs/design.md promises: who imports whom, private names, sizes of files and functions."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "foreload"
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in FILES
}


def tree_of(path: Path) -> ast.Module:
    """Parse a file anew each time: all trees together would be memory that each fork of the tests copies."""
    return ast.parse(path.read_text())


def folder_of(path: Path) -> str:
    """The folder of a file in src/foreload, or the file itself where it lies on top."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def listed() -> dict[str, int]:
    """The folders in the order of docs/design.md, lowest first; those in one line are on one level."""
    text = (ROOT / "docs" / "design.md").read_text().partition("## Import order\n")[2].partition("\n## ")[0]
    levels = re.findall(r"^\d+\. (.*)$", text, re.M)
    return {
        name.rstrip("/"): level for level, line in enumerate(levels) for name in re.findall(r"`([\w/]+)`", line)
    }


def imported(path: Path) -> set[Path]:
    """The files of foreload that a file imports, anywhere in it, for types too."""
    package = path.relative_to(SOURCE.parent).parent.parts
    names = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            names += [f"{base}{node.module or ''}".rstrip(".") + f".{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and re.fullmatch(r"foreload(\.\w+)+", str(node.value)):
            name = str(node.value)  # to be looked up in sys.modules, perhaps
            names += [name] if {name, name.rpartition(".")[0]} & (MODULES.keys() - {"foreload"}) else []
    # (The native module, which is none of the files, is a name in the package's own.)
    names = [name for name in names if not (name + ".").startswith("foreload._native.")]
    found = {MODULES.get(name) or MODULES.get(name.rpartition(".")[0]) for name in names}
    return {other for other in found if other is not None and other != path}


def test_nothing_imports_upwards() -> None:
    levels = listed()
    folders = {folder_of(path) for path in FILES} - {"__main__"}
    assert folders == set(levels), "docs/design.md lists every folder, and none that is not there"
    upwards = [
        f"{path.relative_to(SOURCE)} imports {other.relative_to(SOURCE)}"
        for path in FILES
        # An entry point (``python -m foreload.bench``) belongs to no folder: it starts a command.
        if path.name != "__main__.py"
        for other in imported(path)
        if folder_of(other) != folder_of(path)
        if folder_of(other) not in levels or levels[folder_of(other)] >= levels[folder_of(path)]
    ]
    assert upwards == []


def test_no_files_import_each_other() -> None:
    graph = {path: imported(path) for path in FILES if path.name != "__init__.py"}
    while leaves := {path for path in graph if not graph[path] & set(graph)}:
        graph = {path: others for path, others in graph.items() if path not in leaves}
    assert [str(path.relative_to(SOURCE)) for path in graph] == []


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def own_private_names(tree: ast.Module) -> set[str]:
    """The private names that a file defines: attributes, methods, functions, classes and variables."""
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            own.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
    return own


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_native"


# Where private names of others are read by design: each file says in its docstring why it is the only one.
READS_OTHERS = {"_libraries.py", "_torch.py", "cli/profile/inside/stock.py"}
# Of the standard library: documented, or without another way.
PUBLIC_PRIVATE = {"_current_frames", "_getframe", "_exit", "_replace", "_fields", "_asdict", "_make", "_is_owned"}
# Modules of these names hold what has no private name itself.
PRIVATE_MODULES = {"foreload._libraries", "foreload._torch"}


def private_names_read(node: ast.AST) -> list[str]:
    """The private names that a node imports, or reads of another object than its own, by a string too."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        module = (getattr(node, "module", None) or "").split(".")
        names = [name for alias in node.names for name in alias.name.split(".")]
        is_ours = ".".join(module) in PRIVATE_MODULES
        return [name for name in (names if is_ours else module + names) if is_private(name)]
    if isinstance(node, ast.Attribute):
        return [node.attr] if is_private(node.attr) and not is_self(node.value) else []
    by_string = ("getattr", "hasattr", "setattr", "delattr", "optional", "attrgetter", "methodcaller")
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in by_string):
        return []
    if node.args and is_self(node.args[0]):
        return []
    texts = [str(part.value) for part in node.args if isinstance(part, ast.Constant)]
    return [name for text in texts for name in text.split(".") if is_private(name)]


def test_private_names_are_not_read_across_files() -> None:
    read = []
    for path in FILES:
        if str(path.relative_to(SOURCE)) in READS_OTHERS:
            continue
        tree = tree_of(path)
        own = own_private_names(tree) | PUBLIC_PRIVATE
        read += [
            f"{path.relative_to(SOURCE)}:{node.lineno}: {name} in {ast.unparse(node)}"  # type: ignore[attr-defined]
            for node in ast.walk(tree)
            for name in private_names_read(node)
            if name not in own or isinstance(node, (ast.Import, ast.ImportFrom))
        ]
    assert read == []


@pytest.mark.parametrize(
    ("folder", "suffix", "most"),
    [
        *((folder, "py", 350) for folder in ("src", "tests", "benchmarks", "examples", "scripts")),
        ("src", "js", 350),
        *((folder, suffix, 400) for folder in ("native", "benchmarks") for suffix in ("cpp", "hpp")),
    ],
)
def test_files_are_short(folder: str, suffix: str, most: int) -> None:
    # By path: files of one name would hide each other.
    lines = {path: len(path.read_text().splitlines()) for path in (ROOT / folder).rglob(f"*.{suffix}")}
    assert {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > most} == {}


def test_folders_can_be_read_at_a_glance() -> None:
    # (A noun of C++ is a header and a file that go together.)
    nouns = [path.with_suffix("") for path in (*FILES, *(ROOT / "native").rglob("*.?pp"))]
    counts = Counter(str(noun.parent.relative_to(ROOT)) for noun in set(nouns))
    assert {name: count for name, count in counts.items() if count > 16} == {}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(function: Function) -> int:
    """The lines of a function without docstring and signature: DataLoader has torch's arguments and its own."""
    has_docstring = ast.get_docstring(function) is not None
    first = function.body[min(int(has_docstring), len(function.body) - 1)]
    return (function.end_lineno or 0) - first.lineno + 1


def test_functions_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {node.name} has {code_lines(node)} lines"
        for folder in ("src", "tests", "benchmarks", "examples", "scripts")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, Function) and code_lines(node) > 60
    ]
    assert long == []


# Beginnings of docstrings that a stranger does not understand without the rest of the file.
QUESTION = r"(What|Who|Whose|Whom|How|When|Whether|Where|Which|Why|To whom|Whatever|Whoever|Wherever|Stage)\b"


def first_line(node: ast.AST) -> str:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return (ast.get_docstring(node) or "").partition("\n")[0] if isinstance(node, documented) else ""


def is_understood_alone(node: ast.AST) -> bool:
    """Whether a docstring says what its object is; a function that returns a bool may begin like this one."""
    line, is_function = first_line(node), isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    if isinstance(node, ast.Module) and node.body and not line:
        return False
    return not re.match(QUESTION, line) or (is_function and line.startswith("Whether "))


def test_first_lines_say_what_a_module_is() -> None:
    odd = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {first_line(node)}"
        for folder in ("src", "tests", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(tree_of(path))
        if not is_understood_alone(node)
    ]
    odd += [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sorted((ROOT / "native").rglob("*.?pp"))
        if (line := path.read_text().partition("\n")[0]).startswith("// ") and re.match(QUESTION, line[3:])
    ]
    assert odd == []


# The class that implements the protocol of its name.
SAME_CLASSES = {"SampleStore"}
# Functions that do the same to different things, or that a command and the code behind it share.
SAME_FUNCTIONS = {"main", "pack", "plot", "profile", "resample", "serve", "table", "write_json"}


def test_no_two_files_define_one_public_name() -> None:
    files: dict[str, set[str]] = {}
    for path in FILES:
        for node in tree_of(path).body:
            if isinstance(node, (ast.ClassDef, Function)) and not node.name.startswith("_"):
                files.setdefault(node.name, set()).add(str(path.relative_to(SOURCE)))
    twice = {name: paths for name, paths in files.items() if len(paths) > 1}
    assert {name: twice[name] for name in twice.keys() - SAME_CLASSES - SAME_FUNCTIONS} == {}


# What the limited API of Python 3.12 has, in which the wheel for 3.12 and all later versions is compiled. A build
# for 3.11 takes many other names: look one up in "Stable ABI contents" of the manual before you add it.
LIMITED_API = {
    *("PyBUF_FORMAT", "PyBUF_ND", "PyBuffer_Release", "PyBytes_AsString", "PyBytes_Check", "PyBytes_Size"),
    *("PyBytes_FromStringAndSize", "PyDict_Contains", "PyDict_SetItem", "PyErr_CheckSignals", "PyErr_Clear"),
    *("PyDict_GetItemWithError", "PyDict_Next", "PyErr_Occurred", "PyList_GetItem", "PyObject_GetAttr"),
    *("PyCapsule_GetPointer", "PyErr_ExceptionMatches", "PyExc_Exception", "PyTuple_GetItem", "PyTuple_Size"),
    *("PyErr_SetObject", "PyEval_RestoreThread", "PyEval_SaveThread", "PyGILState_Ensure", "PyGILState_Release"),
    *("PyGILState_STATE", "PyObject", "PyObject_GetBuffer", "PyObject_Repr", "PyObject_Size", "PyThreadState"),
    *("PyUnicode_Check", "PyUnicode_DecodeFSDefaultAndSize", "PyUnicode_EncodeFSDefault", "Py_TYPE", "Py_buffer"),
    *("PyUnicode_AsUTF8AndSize", "PyUnicode_FromStringAndSize", "PyUnicode_InternFromString", "Py_ssize_t"),
}


def test_bindings_keep_to_the_limited_api() -> None:
    code = "".join(path.read_text() for path in sorted((ROOT / "native").rglob("*.[ch]pp")))
    by_name = set(re.findall(r'dlsym\(RTLD_DEFAULT, "(\w+)"\)', code))  # is looked for when it is called
    assert by_name == {"PySys_AddAuditHook"}
    assert set(re.findall(r"\b_?Py(?!thon)\w*", code)) - LIMITED_API == by_name
