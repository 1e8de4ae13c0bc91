"""The documentation site: it builds strictly, its Python runs, its messages are the code's, names are listed.

Blocks marked ``python`` run, those marked ``py`` are only compiled: other libraries' code, or what needs a cloud.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import itertools
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from inspect import ismodule
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, get_args

import pytest

import foreload as fl
from foreload.report.verdict import VerdictKind
from tests.conftest import jpeg, photo
from tests.remote.web_server import Server
from tests.test_documents import ROOT, blocks_of, run

DOCS = ROOT / "docs"
FOLDERS = ("start", "choose", "migrate", "guides", "troubleshoot", "how")
PAGES = sorted(page for folder in FOLDERS for page in (DOCS / folder).glob("*.md"))
PACKAGE = Path(fl.__file__).parent
DALI = "https://docs.nvidia.com/deeplearning/dali/user-guide/docs/advanced_topics_sharding.html"


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make what the pages take for granted: photos in class folders, shards of them, lines of text."""
    root = tmp_path_factory.mktemp("site")
    for number in range(40):
        path = root / "photos" / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(photo(100, 80, number)))
    fl.pack(root / "photos", root / "shards", shard_bytes=1 << 15)
    for number, shard in enumerate(sorted((root / "shards").glob("*.tar"))):
        (root / "shards" / f"train-{number:06}.tar").write_bytes(shard.read_bytes())
        shard.unlink()
        Path(f"{shard}.idx").unlink()
    (root / "shards" / "pack.json").unlink()
    lines = [f"{number} lines of a text that is {'very ' * (number % 5)}long" for number in range(30)]
    (root / "lines.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def names(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A folder of the page's own with what was prepared in it, and the names that it takes for granted."""
    for path in prepared.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    loader = fl.DataLoader([1, 2, 3], num_workers=0)
    return {"fl": fl, "loader": loader, "images": fl.ImageDataset("photos", 32)}


@pytest.fixture
def url(prepared: Path) -> Iterator[str]:
    server = Server(prepared / "shards")
    yield f"http://127.0.0.1:{server.server_address[1]}/train-{{000000..000001}}.tar"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the cache's budget", "ignore:there are only", "ignore:.*multi-threaded.*fork")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=name_of)
def test_the_python_of_a_page_runs(page: Path, names: dict[str, Any], request: pytest.FixtureRequest) -> None:
    if page.name == "buckets.md":
        pytest.importorskip("obstore")
        names["url"] = request.getfixturevalue("url")
    run(str(page.relative_to(ROOT)), names)


def test_the_first_pages_python_runs(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    run("docs/start/index.md", names)
    assert names["images"].shape[1:] == (3, 224, 224)
    assert "What to change" in capsys.readouterr().out or names["loader"].report()


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=name_of)
def test_what_does_not_run_is_python_at_least(page: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in re.findall(r"^``` py.*?\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            compile(block, str(page), "exec")


def spoken(path: Path) -> Iterator[str]:
    """The texts in a module, with "…" where values are put in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = [value.value if isinstance(value, ast.Constant) else "…" for value in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_messages_are_those_of_the_code() -> None:
    text = (DOCS / "troubleshoot" / "index.md").read_text()
    messages = [match.strip() for match in re.findall(r"^ *```text\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)]
    assert len(messages) > 10
    code = "\n".join(itertools.chain.from_iterable(map(spoken, sorted(PACKAGE.rglob("*.py")))))
    for message in messages:
        for fragment in re.split(r"\s*…\s*", message):
            assert fragment in code, message


def public_names() -> Iterator[str]:
    modules = ("dali", "errors", "export", "transforms", "order", "protocol")
    yield from (f"foreload.{name}" for name in fl.__all__ if name not in ("packing", *modules))
    yield from (f"foreload.datasets.packing.{name}" for name in fl.packing.__all__)
    for module in modules:
        yield from (f"foreload.{module}.{name}" for name in importlib.import_module(f"foreload.{module}").__all__)


def resolve(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def test_every_public_name_is_in_the_reference() -> None:
    pages = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    listed = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    named = {id(resolve(name)) for name in listed}
    assert [name for name in public_names() if id(resolve(name)) not in named] == []
    assert len(set(listed)) == len(listed)


def test_public_names_have_examples() -> None:
    """Those of `protocol` have theirs in docs/extending.md."""
    missing = []
    for name in public_names():
        value = resolve(name)
        if isinstance(value, tuple) or name.startswith("foreload.protocol."):
            continue
        kinds = (FunctionType, classmethod, staticmethod, property)
        texts = [value.__doc__, *(part.__doc__ for part in vars(value).values() if isinstance(part, kinds))]
        if not any(">>>" in (text or "") for text in texts):
            missing.append(name)
    assert missing == []


def test_docstrings_of_what_raises_say_what() -> None:
    missing = []
    for name in public_names():
        value = resolve(name)
        made = value.__init__ if isinstance(value, type) else value
        if name.startswith(("foreload.protocol.", "foreload.errors.")) or not isinstance(made, FunctionType):
            continue
        if made.__module__.startswith("foreload.") and not made.__code__.co_filename.startswith("<"):
            raises = re.search(r"^ +(raise |_?check_\w+\()", inspect.getsource(made), re.MULTILINE)
            if raises and not any("Raises:" in (text or "") for text in (value.__doc__, made.__doc__)):
                missing.append(name)
    assert missing == []


def test_docstrings_name_every_argument_and_no_other() -> None:
    """Those of functions and of the making of classes; their methods' often follow from a protocol."""
    wrong = []
    # (Packed rows are made by pack_sequences.)
    left_out = (
        "foreload.protocol.",
        "foreload.errors.",
        "foreload.LoadingMode",
        "foreload.datasets.packing.PackedDataset",
    )
    for name in {id(resolve(name)): name for name in public_names()}.values():
        value = resolve(name)
        if not callable(value) or name.startswith(left_out):
            continue
        texts = [value.__doc__, value.__init__.__doc__ if isinstance(value, type) else ""]
        text = "\n".join(inspect.cleandoc(one or "") for one in texts)
        arguments = set(inspect.signature(value).parameters) - {"args", "kwargs"}
        section = re.search(r"^Args:\n((?: {4,}.*(?:\n|$))*)", text, re.MULTILINE)
        entries = re.findall(r"^ {4}(\w+(?:,\s+\w+)*): ", section[1] if section else "", re.MULTILINE)
        listed = {argument for entry in entries for argument in re.split(r",\s+", entry)}
        unnamed = [argument for argument in arguments if not re.search(rf"\b{argument}\b", text)]
        wrong += [f"{name}: {argument}" for argument in (*unnamed, *(listed - arguments))]
    assert wrong == []


def test_names_that_a_page_gives_in_full_are_in_the_reference() -> None:
    listed = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    known = {id(resolve(name)) for name in re.findall(r"^::: (\S+)$", listed, re.MULTILINE)}
    unknown = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        named = re.findall(r"`(foreload(?:\.[a-z_]+)+\.\w+)[`(]", text)
        for module, names in re.findall(r"^ *from (foreload\.\S+) import (.+)$", text, re.MULTILINE):
            named += [f"{module}.{name}" for name in names.split(", ")]
        found = [(name, resolve(name)) for name in named if hasattr(resolve(name.rpartition(".")[0]), "__name__")]
        unknown += [
            f"{page.name}: {name}" for name, value in found if not ismodule(value) and id(value) not in known
        ]
    assert unknown == []


def test_the_errors_of_the_reference_are_those_of_the_module() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    tree = textwrap.dedent((fl.errors.__doc__ or "").partition("::\n\n")[2].partition("\n\n")[0])
    assert tree.replace("``", "`") in page


def test_every_verdict_is_explained() -> None:
    page = (DOCS / "troubleshoot" / "index.md").read_text()
    assert re.findall(r"^\| ([a-z]+(?:-[a-z]+)+) \|", page, re.MULTILINE) != []
    assert set(get_args(VerdictKind)) == set(re.findall(r"^\| ([a-z]+(?:-[a-z]+)+) \|", page, re.MULTILINE))


def test_the_oldest_torch_is_the_one_that_is_required() -> None:
    required = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert required is not None
    for page in ("README.md", "docs/start/index.md", "CHANGELOG.md", "docs/troubleshoot/index.md"):
        assert re.findall(r"torch(?: |>=)(\d\.\d+)", (ROOT / page).read_text()) == [required[1]], page


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = map(name_of, DOCS.rglob("*.md"))
    missing = [page for page in pages if not re.search(rf"[ -]{page}\n", navigation)]
    assert missing == [], "add them to nav in mkdocs.yml"


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "search" / "search_index.json").exists()
    reference = (tmp_path / "reference" / "loader" / "index.html").read_text()
    for broken in (":class:", ":meth:", "&lt;p&gt;"):
        assert broken not in reference
    loaded = re.compile(r'<(?:script|img|link rel="stylesheet")[^>]* (?:src|href)="(https?:[^"]*)"')
    for page in tmp_path.rglob("*.html"):  # nothing is loaded from other hosts
        assert loaded.findall(page.read_text()) == []


@pytest.mark.slow
@pytest.mark.parametrize("page", ["[a](none.md)", "[a](#none)", "# Title"])
def test_a_wrong_link_is_an_error(page: str, tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "docs.sh").write_text((ROOT / "scripts" / "docs.sh").read_text())
    validation = (ROOT / "mkdocs.yml").read_text().partition("\nvalidation:")[2].partition("\n\n")[0]
    (tmp_path / "mkdocs.yml").write_text(f"site_name: test\nvalidation:{validation}\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(page)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    built = subprocess.run(["bash", tmp_path / "scripts" / "docs.sh"], capture_output=True, text=True)
    assert (built.returncode == 0) == (page == "# Title"), built.stderr


def test_links_between_documents_become_links_between_pages() -> None:
    pages: Any = load("site_pages")
    here = SimpleNamespace(src_uri="start/index.md")
    page = SimpleNamespace(file=here)
    text = "[a](../../benchmarks/README.md#reading) [b](../data.md) [c](https://x.org/y) `[d](../e)` [f](#g)"
    found = pages.on_page_markdown(text, page, None, None)
    assert found == (
        "[a](../repository/benchmarks/README.md#reading) [b](../data.md) [c](https://x.org/y) `[d](../e)` [f](#g)"
    )
    here.src_uri = "repository/benchmarks/README.md"
    assert pages.on_page_markdown("[a](../docs/data.md)", page, None, None) == "[a](../../data.md)"


def test_links_to_elsewhere_are_listed() -> None:
    links = list(load("site_links").external_links())
    assert ("docs/migrate/dali.md", DALI) in links
    assert [link for _, link in links if not link.startswith("https://")] == []


def test_links_that_lead_nowhere_are_found(prepared: Path) -> None:
    problem_of: Callable[[str], str] = load("site_links").problem_of
    server = Server(prepared / "shards")
    address = f"http://127.0.0.1:{server.server_address[1]}"
    assert problem_of(f"{address}/train-000000.tar") == ""
    assert problem_of(f"{address}/none").startswith("404")
    server.shutdown()
    server.server_close()
    assert problem_of(f"{address}/train-000000.tar") != ""


def test_docstrings_become_markdown() -> None:
    to_markdown: Callable[[str], str] = load("site_docstrings").to_markdown
    text = "See :meth:`~a.B.c`.\n\n>>> f()\n1\n\nEnd."
    assert to_markdown(text) == "See `a.B.c`.\n\n```pycon\n>>> f()\n1\n```\n\nEnd."
    assert (
        to_markdown(":class:`~foreload.Cache`, :func:`pack`")
        == "[`Cache`][foreload.Cache], [`pack`][foreload.pack]"
    )
    assert to_markdown("Args:\n    a, b,\n    c: as in torch.\n") == "Args:\n    a, b, c: as in torch.\n"
    assert to_markdown("Thus::\n\n    x\n") == "Thus:\n\n    x\n"


def load(name: str) -> Any:
    if name != "site_links":
        pytest.importorskip("griffe" if name == "site_docstrings" else "mkdocs")
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
