"""``foreload profile`` finds what holds scripts back, whatever loader they have."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from foreload.cli.profile import Profile, profile
from tests.cli.profiled import write
from tests.programs import python

SCRIPTS = Path(__file__).parents[1] / "scripts"


def only(found: Profile) -> dict[str, Any]:
    (loader,) = found.loaders
    return loader.stats


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for number in range(120):
        (folder / f"{number:03}").write_bytes(bytes(4096))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "kind", "samples"),
    [
        pytest.param("slow_disk.py", ["FILES", "0"], "read-bound", 360, marks=pytest.mark.slow),
        pytest.param("slow_disk.py", ["FILES", "2"], "read-bound", 360, marks=pytest.mark.slow),
        pytest.param("heavy_transform.py", ["0"], "decode-bound", 320, marks=pytest.mark.slow),
        pytest.param("heavy_transform.py", ["2"], "decode-bound", 320, marks=pytest.mark.slow),
        ("tiny_batches.py", [], "batch-bound", 6000),
        pytest.param("main_collation.py", [], "batch-bound", 800, marks=pytest.mark.slow),
        pytest.param("slow_consumer.py", [], "consumer-bound", 1280, marks=pytest.mark.slow),
        pytest.param("pageable.py", [], "transfer-bound", 1280, marks=pytest.mark.slow),
        pytest.param("python_bound.py", [], "python-bound", 960, marks=pytest.mark.slow),
    ],
)
def test_what_was_planted_is_found(
    script: str, arguments: list[str], kind: str, samples: int, files: Path
) -> None:
    for _ in range(8):  # others who need the cores may hide what is slow
        found = profile(SCRIPTS / script, [str(files) if each == "FILES" else each for each in arguments])
        if found.reports[0].verdict.kind == kind:
            break
    assert found.code == 0
    stats = only(found)
    assert stats["samples"] == samples
    assert found.reports[0].verdict.kind == kind
    assert stats["loader"]["stock"] is (script != "python_bound.py")
    assert stats["wait_seconds"] + stats["loop_seconds"] == pytest.approx(stats["seconds"], rel=0.01)
    if script == "slow_disk.py":
        assert 360 <= stats["files"]["opened"] <= 365
        assert 0.9 * 360 * 4096 < stats["bytes_read"] < 2 * 360 * 4096
    if script == "pageable.py":
        assert stats["stages"]["device"]["bytes"] == 2 * 640 * 10 * 4
        assert any("pin_memory" in advice.change for advice in found.reports[0].verdict.advice)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("raise SystemExit(7)", 7),
        pytest.param("import sys; sys.exit('bye')", 1, marks=pytest.mark.slow),
        pytest.param("import os; os._exit(9)", 9, marks=pytest.mark.slow),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        pytest.param("x = (", 1, marks=pytest.mark.slow),
        pytest.param("print(input())", 1, marks=pytest.mark.slow),
        ("import os\nif os.fork() == 0: raise SystemExit(3)\nraise SystemExit(os.waitpid(-1, 0)[1] >> 8)", 3),
        ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'exit(4)'])", 0),
        ("import multiprocessing as m\nif __name__ == '__main__':\n m.get_context('spawn').Process().start()", 0),
    ],
)
def test_without_a_loader_that_is_said_and_the_code_is_the_scripts(
    text: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(os.devnull) as nothing:
        before = os.dup(0)
        os.dup2(nothing.fileno(), 0)
        try:
            found = profile(write(tmp_path, text, loader=False))
        finally:
            os.dup2(before, 0)
            os.close(before)
    assert found.code == code
    found.show()
    assert "took no batch from a DataLoader" in " ".join(capsys.readouterr().out.split())


UNMEASURABLE = """
import numpy as np
class Closed:
    def __getattr__(self, name): raise RuntimeError(name)
kinds = {
    "sparse": lambda samples: torch.eye(3).to_sparse(),
    "nested": lambda samples: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "closed": lambda samples: [Closed()],
}
sampler = [np.arange(3), np.arange(4)]
for collate in kinds.values():
    for batch in DataLoader(Rows(), batch_sampler=sampler, collate_fn=collate): pass
"""


@pytest.mark.slow
def test_batches_that_cannot_be_measured_are_counted(tmp_path: Path) -> None:
    found = profile(write(tmp_path, UNMEASURABLE))
    assert found.code == 0
    assert sum(each.stats["samples"] for each in found.loaders) == 3 * 7


VARIETY = """
class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        yield from map(torch.tensor, range(10 if info is None else 10 + info.id))

if __name__ == "__main__":
    for batch in DataLoader(Stream(), batch_size=4): pass
    for batch in DataLoader(Stream(), batch_size=4, num_workers=2): pass
    loader = DataLoader(Rows(), batch_size=None, num_workers=1, persistent_workers=True)
    for _ in range(3):
        for sample in loader: pass
    for _ in range(2):
        for batch in DataLoader(Rows(), batch_sampler=[[1, 2], [3]], collate_fn=list): pass
    half = iter(DataLoader(Rows(), batch_size=4, num_workers=1, multiprocessing_context="MORE"))
    next(half); next(half)
    del half
    from torch.utils.data import get_worker_info
    process = torch.multiprocessing.get_context("fork").Process(target=other)
    process.start(); process.join()
    os._exit(0)
"""
OTHER = """
def other():
    for batch in DataLoader(Rows(), batch_size=20): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "start", ["fork", *(pytest.param(start, marks=pytest.mark.slow) for start in ("spawn", "forkserver"))]
)
def test_every_kind_of_loader_is_counted(start: str, tmp_path: Path) -> None:
    found = profile(write(tmp_path, OTHER + VARIETY.replace("MORE", start)), trace=True)
    assert found.code == 0
    counts = {
        (each.stats["workers"]["count"], each.stats["loader"]["dataset"], each.stats["loader"]["batch_size"]): (
            each.stats["epochs"],
            each.stats["batches"],
            each.stats["samples"],
        )
        for each in found.loaders
    }
    assert counts == {
        (0, "Stream", 4): (1, 3, 10),
        (2, "Stream", 4): (1, 6, 21),
        (1, "Rows", None): (3, 120, 120),
        (0, "Rows", None): (2, 4, 6),
        (1, "Rows", 4): (1, 2, 8),
        (0, "Rows", 20): (1, 2, 40),
    }
    assert len({each.where for each in found.loaders}) == 6
    for each in found.loaders:
        assert each.where.startswith("script.py:")
        loaded = each.stats["stages"]["sample"]
        assert loaded["samples"] >= each.stats["samples"]
        assert loaded["seconds"] > 0
        assert len(each.lanes) == 1 + each.stats["workers"]["count"]
        assert set(each.spans["lane"]) == set(range(len(each.lanes)))
        assert (each.spans["end"] >= each.spans["begin"]).all()


@pytest.mark.slow
def test_images_and_transforms_are_told_apart(photos: Path, tmp_path: Path) -> None:
    text = """
from pathlib import Path
from PIL import Image
import simplejpeg
class Photos(Dataset):
    paths = sorted(Path(sys.argv[1]).rglob("*.jpg"))
    def __len__(self): return len(self.paths)
    def __getitem__(self, index):
        if index % 2:
            return simplejpeg.decode_jpeg(self.paths[index].read_bytes())[0, 0, 0].item()
        return Image.open(self.paths[index]).convert("RGB").resize((8, 8)).getpixel((0, 0))[0]
for batch in DataLoader(Photos(), batch_size=4): pass
"""
    pytest.importorskip("simplejpeg")
    found = profile(write(tmp_path, text), [str(photos)])
    stats = only(found)
    assert found.code == 0
    assert stats["stages"]["decode"]["count"] == 40
    assert stats["stages"]["decode"]["seconds"] > 0
    size = sum(path.stat().st_size for path in photos.rglob("*.jpg"))
    assert stats["bytes_read"] >= 0.8 * size
    assert stats["files"]["opened"] >= 40


@pytest.mark.slow
@pytest.mark.parametrize("is_persistent", [False, True])
def test_starting_and_ending_workers_is_measured(is_persistent: bool, tmp_path: Path) -> None:
    loop = f"""
loader = DataLoader(Rows(), batch_size=4, num_workers=4, persistent_workers={is_persistent})
for epoch in range(3):
    for batch in loader: pass
"""
    script = write(tmp_path, loop)
    python("-m", "foreload", "profile", "--json", tmp_path / "r.json", script, folder=tmp_path)
    (loader,) = json.loads((tmp_path / "r.json").read_text())["loaders"]
    workers, seconds = loader["stats"]["workers"], loader["stats"]["seconds"]
    # A process takes a millisecond at the very least.
    assert (4 if is_persistent else 12) * 1e-3 < workers["start_cpu_seconds"] < 2 * seconds
    assert workers["end_seconds"] > 0


@pytest.mark.slow
def test_traces_and_records_are_written(tmp_path: Path) -> None:
    script = write(tmp_path, "for batch in DataLoader(Rows(), batch_size=4): pass\nraise SystemExit(5)")
    options = ["--trace", tmp_path / "t.json", "--json", tmp_path / "r.json"]
    result = python("-m", "foreload", "profile", *options, script, folder=tmp_path)
    assert result.returncode == 5
    assert "Rows" in result.stdout
    assert "script.py:" in result.stdout
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {"wait", "sample", "batch"} <= {event.get("name") for event in events}
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["loaders"][0]["verdict"]["kind"] == "too-short" or record["loaders"][0]["verdict"]["advice"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json", "script.py", "t.json"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{}/none.py"], "there is no script"),
        (["{}"], "is a folder without a __main__.py"),
        (["--none", "{}/script.py"], "there is no option or script '--none'"),
        (["--json", "{}/none/x.json", "{}/script.py"], "cannot be written: No such file"),
        (["--trace", "{}", "{}/script.py"], "cannot be written: Is a directory"),
        (["--nsys", "{}/script.py"], "Nsight Systems"),
        ([], "SCRIPT"),
    ],
)
def test_wrong_input_is_said_plainly(arguments: list[str], words: str, tmp_path: Path) -> None:
    write(tmp_path, "print('ran')", loader=False)
    filled = [each.replace("{}", str(tmp_path)) for each in arguments]
    result = python("-m", "foreload", "profile", *filled, environment={**os.environ, "PATH": "/nowhere"})
    assert result.returncode == 2
    assert words in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr
    assert "ran" not in result.stdout


@pytest.mark.slow
def test_loaders_that_try_out_workers_are_not_the_scripts(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import time, torch, foreload\n"
        "class Slow(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 200\n"
        "    def __getitem__(self, index): time.sleep(0.003); return torch.tensor(index)\n"
        "if __name__ == '__main__':\n"
        "    for batch in foreload.DataLoader(Slow(), batch_size=8): pass\n"
    )
    found = profile(script)
    assert [loader.where for loader in found.loaders] == ["train.py:6"]
