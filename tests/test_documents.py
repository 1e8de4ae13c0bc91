"""README.md and docs/: their Python runs, and the files and names in them exist.

tests/export/test_trace.py runs the Python of profiling.md, tests/test_site.py that of the folders of docs/.
"""

from __future__ import annotations

import doctest
import operator
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import TensorDataset

import foreload as fl
from tests.conftest import photo
from tests.ranks import flat, run_ranks

ROOT = Path(__file__).parents[1]
_WITH_COMMANDS = {".md", ".yaml", ".yml", ".py", ".ipynb", ".sh"}


def blocks_of(path: Path) -> list[str]:
    """The Python blocks of a document, each on its own line numbers."""
    text = path.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in found]


def run(document: str, names: dict[str, Any]) -> dict[str, Any]:
    blocks = blocks_of(ROOT / document)
    assert blocks
    for block in blocks:
        exec(compile(block, document, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def photos(folder: Path) -> None:
    for number in range(8):
        path = folder / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(320, 240, number).save(path)


@pytest.mark.filterwarnings("ignore:the cache's budget")  # a document's machine is larger
def test_readme() -> None:
    photos(Path("imagenet/train"))
    dataset = fl.ImageDataset("imagenet/train", transform=fl.transforms.train(224))
    checkpoint = {"loader": fl.DataLoader(dataset, batch_size=256, shuffle=True, seed=0).state_dict()}
    names = run("README.md", {"my_dataset": list(range(100)), "checkpoint": checkpoint})
    assert len(names["images"]) == 8


@pytest.mark.filterwarnings("ignore:the cache's budget")
def test_cache() -> None:
    samples = list(torch.arange(100.0))
    run("docs/cache.md", {"fl": fl, "images": samples, "mine": samples, "augment": lambda x: x})


def test_workers() -> None:
    loader = fl.DataLoader(list(range(100)), batch_size=8, shuffle=True, seed=0)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    run("docs/workers.md", {"fl": fl, "loader": loader})
    assert loader.stats()["samples"] == 100


def test_loader(capsys: pytest.CaptureFixture[str]) -> None:
    run("docs/loader.md", {"fl": fl, "dataset": list(range(100))})
    assert "No sign that threads are wrong here" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the cache's budget")
def test_frameworks() -> None:
    transformers = pytest.importorskip("transformers")
    names = run("docs/frameworks.md", {"dataset": list(range(100))})
    assert type(names["loader"]) is fl.DataLoader
    assert sum(map(len, names["loader"])) == 100
    arguments = transformers.TrainingArguments(output_dir=".", report_to=[], use_cpu=True)
    trainer = names["Trainer"](torch.nn.Linear(1, 1), arguments, train_dataset=list(range(100)))
    assert isinstance(trainer.get_train_dataloader().base_dataloader, fl.DataLoader)


def recipe_of_fsdp(rank: int, world: int, document: str) -> list[list[float]]:
    """Train as the document has it, and go on from a checkpoint; return what was loaded."""
    dataset = TensorDataset(torch.arange(96.0)[:, None].expand(96, 16), torch.arange(96.0))
    names = run(document, {"dataset": dataset})
    loader = names["train"](dataset)
    assert len(loader) == 6
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    first, again = names["make_loader"](dataset, mesh), names["make_loader"](dataset, mesh)
    batches = iter(first)
    seen = [next(batches)[1].tolist() for _ in range(2)]
    path = Path(f"{document}.{world}.pt").name
    names["save"](path, first, 2)
    dist.barrier()
    assert names["load"](path, again) == 2
    return seen + [y.tolist() for _, y in again]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the cache's budget")
def test_distributed(tmp_path: Path) -> None:
    names = run("docs/distributed.md", {"dataset": list(range(100))})
    assert sum(map(len, names["stock"])) == 50
    got = run_ranks(recipe_of_fsdp, 4, tmp_path / "ranks", "docs/distributed.md")
    assert got[0] == got[1]
    assert got[2] == got[3]
    assert sorted(flat(got[0] + got[2])) == list(range(96))


def test_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where sockets are
    loader = run("docs/serve.md", {"dataset": list(range(100))})["loader"]
    assert loader.published == "train"
    loader.close()


def test_gpu() -> None:
    photos(Path("photos"))
    images, labels = torch.zeros(100, 3), torch.arange(100)
    names = run("docs/gpu.md", {"dataset": torch.utils.data.TensorDataset(images, labels)})
    assert names["images"].dtype is torch.bfloat16
    assert names["images"].is_contiguous(memory_format=torch.channels_last)
    assert names["copied"]["samples"] == 8


def test_extending() -> None:
    run("docs/extending.md", {})


def test_data() -> None:
    data = run("docs/data.md", {})["data"]
    assert len(data) == 100


def run_skipped_examples(value: Any, **names: Any) -> None:
    """Run a docstring's examples, those too that are skipped where a package may be missing."""
    text = value.__doc__.replace("# doctest: +SKIP", "")
    example = doctest.DocTestParser().get_doctest(text, names, value.__name__, None, 0)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *(path for folder in ("docs", "benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.md"))),
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_is_there(document: Path) -> None:
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = [link for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", text) if not (document.parent / link).exists()]
    assert links == []
    roots = [document.parent, ROOT, ROOT / "src" / "foreload", ROOT / "native" / "core", ROOT / "benchmarks"]
    files = re.findall(r"`([\w./]+/[\w.]*|[\w./]+\.(?:py|pyi|cpp|hpp|sh))`", text)
    assert [name for name in files if not any((root / name).exists() for root in roots)] == []
    for name in re.findall(r"`fl\.([\w.]+)", text):
        assert operator.attrgetter(name)(fl)


def test_foreload_is_installed_from_no_index() -> None:
    """It is on none yet: the command would fail, or install what somebody else has published under that name."""
    folders = ("docs", "benchmarks", "examples", "scripts", "src", ".github", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in _WITH_COMMANDS]
    files += [*ROOT.glob("*.md"), *ROOT.glob("*.yaml"), *ROOT.glob("Dockerfile"), *ROOT.glob("Makefile")]
    assert {"cluster.yaml", "start.ipynb", "setup.sh"} <= {path.name for path in files}
    for path in files:
        text = re.sub(r"^```text\n.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        assert not re.findall(r"pip install (?:-\S+ )*['\"]?foreload\b", text), path
