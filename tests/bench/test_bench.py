"""The comparison: each configuration delivers each sample once, and the table says what is what."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import foreload as fl
from foreload.bench import show
from foreload.bench.contestants import IMAGE_CONTESTANTS, TENSOR_CONTESTANTS, Contestant, Work, present
from foreload.bench.measure import ContestantResult
from foreload.bench.stock import StockImages
from foreload.bench.synth import synth_images
from foreload.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    synth_images(folder, 20, classes=4)
    return folder


@pytest.mark.sampled(1)
@pytest.mark.parametrize("contestant", present(IMAGE_CONTESTANTS), ids=lambda contestant: contestant.name)
def test_every_image_comes_once_an_epoch(contestant: Contestant, folder: Path) -> None:
    epoch = contestant.make(Work(folder=str(folder), batch_size=8, workers=2))
    seen = []
    for seed in (1, 2):
        batches = list(epoch(seed))
        labels = torch.cat([labels.cpu() for _, labels in batches])
        assert sorted(labels.tolist()) == sorted([0, 1, 2, 3] * 5)
        assert {images.shape[1:] for images, _ in batches} == {(3, 224, 224)}
        assert {images.dtype for images, _ in batches} == {torch.float32}
        seen.append(labels)
    if "streaming" not in contestant.name:  # which shuffles classes of five images only so much
        assert not torch.equal(*seen)


@pytest.mark.parametrize(("rows_in_all", "batch_size"), [(96, 8), (100, 8), (9, 64)])
@pytest.mark.parametrize("contestant", present(TENSOR_CONTESTANTS), ids=lambda contestant: contestant.name)
def test_every_row_comes_once_an_epoch(contestant: Contestant, rows_in_all: int, batch_size: int) -> None:
    """Rows that do not fill the last batch too, so that contestants do the same work, however few there are."""
    epoch = contestant.make(Work(rows=rows_in_all, columns=3, batch_size=batch_size, workers=2))
    expected = TENSOR_CONTESTANTS[0].make(Work(rows=rows_in_all, columns=3, batch_size=batch_size))
    rows = torch.cat([x.cpu().clone() for x, _ in epoch(1)])
    whole = torch.cat([x for x, _ in expected(1)])
    assert torch.equal(rows.sort(0).values, whole.sort(0).values)
    assert not torch.equal(rows, torch.cat([x.cpu().clone() for x, _ in epoch(2)]))


def test_what_users_compare_is_there() -> None:
    images = [contestant.name for contestant in IMAGE_CONTESTANTS]
    assert images == [
        "stock, in the loop",
        "stock, workers",
        "foreload, baseline",
        "foreload, workers",
        "foreload, LRU",
        "foreload, cached",
        "foreload, preloaded",
        "foreload, streaming",
        "foreload, async prefetch",
        "foreload, pinned + device",
        "foreload, full",
    ]
    tensors = " ".join(contestant.name for contestant in TENSOR_CONTESTANTS)
    assert "CachedDataset" in tensors
    assert "AsyncPrefetchDataset" in tensors
    for contestant in (*IMAGE_CONTESTANTS, *TENSOR_CONTESTANTS):
        assert 10 < len(contestant.about) < 85
        assert "\n" not in contestant.about
    if not torch.accelerator.is_available():
        assert "foreload, pinned + device" not in [contestant.name for contestant in present(IMAGE_CONTESTANTS)]


def shown(part: Any) -> str:
    text = io.StringIO()
    Console(width=110, file=text).print(part)
    return text.getvalue()


def test_the_sentence_tells_loading_from_keeping_in_memory() -> None:
    def result(name: str, speed: float) -> ContestantResult:
        return ContestantResult(name, name.startswith("stock"), [speed], [1.0], [1.0], 1.0, "")

    results = [
        result("stock, workers", 100.0),
        result("foreload, workers", 400.0),
        result("foreload, full", 9000.0),
    ]
    assert "9,000 images/s (full), 90.0 times" in show.sentence(results, "images")
    assert show.sentence(results, "images").endswith("Without keeping images: 400 (workers), 4.0 times.")
    assert "Without" not in show.sentence(results, "rows")
    assert "Without" not in show.sentence(results[:2], "images")
    assert "over 1 seed ±" in shown(show.table(results, "images"))


def test_the_table_has_spread_and_range_and_says_what_each_is() -> None:
    results = [
        ContestantResult(
            "stock, workers", True, [100.0, 200.0, 300.0], [10.0, 20.0, 30.0], [1.0, 2.0, 3.0], 5.0, "torch's"
        ),
        ContestantResult("foreload, full", False, [400.0] * 3, [5.0] * 3, [1.0] * 3, 7.0, "everything together"),
    ]
    table = shown(show.table(results, "images"))
    assert "20.0 ± 10.0" in table
    assert "10.0 to 30.0" in table
    assert "2.00x" in table
    legend = shown(show.legend(results)).splitlines()
    assert [line.split("  ")[0].strip() for line in legend] == ["stock, workers", "foreload, full"]
    assert legend[1].endswith("everything together")
    single = [result._replace(batch_ms=result.batch_ms[:1]) for result in results]
    assert "±" not in "".join(line for line in shown(show.table(single, "images")).splitlines() if "stock" in line)


def test_every_contestant_has_the_same_files(tmp_path: Path) -> None:
    names = ["b/deep/1.JPEG", "a/2.jpeg", "a/3.JPG", "a/4.png", "a/.5.jpg", "b/6.gif", "b/notes.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.warns(UserWarning, match="not listed"):
        stock, images = StockImages(tmp_path), fl.ImageDataset(tmp_path)
    expected = [("a/2.jpeg", 0), ("a/3.JPG", 0), ("a/4.png", 0), ("b/deep/1.JPEG", 1)]
    assert stock.samples == images.samples == [(str(tmp_path / name), target) for name, target in expected]


@pytest.mark.parametrize("ending", [".JPEG", ".Jpg", ".jpeg", ".png"])
def test_jpegs_of_any_ending_are_compared(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("typer")
    (tmp_path / "one" / "deep").mkdir(parents=True)
    (tmp_path / "one" / "deep" / f"1{ending}").write_bytes(b"")
    compared: list[Any] = []
    monkeypatch.setattr("foreload.cli.commands._bench", lambda _, work, *rest: compared.append(work.folder))
    with pytest.raises(SystemExit) as ended:
        main(["bench", str(tmp_path)])
    expected = (2, []) if ending == ".png" else (0, [str(tmp_path)])
    assert (ended.value.code, compared) == expected
