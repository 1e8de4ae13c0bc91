"""Progress bars: on a real terminal, and in all the places where there must be none."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Subset

import foreload as fl
from foreload.record import progress
from foreload.record.progress import ProgressBar, track, track_threads
from tests.record.terminals import Terminal


@pytest.fixture(params=["rich", "plain"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(progress, "find_spec", lambda name: None)
    return str(request.param)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Terminal]]:
    made = []
    monkeypatch.setenv("TERM", "xterm")

    def make(columns: int = 80) -> Terminal:
        made.append(Terminal(columns))
        monkeypatch.setattr(sys, "stderr", made[-1].stream)
        monkeypatch.setenv("COLUMNS", str(columns))  # rich asks the process's own terminal otherwise
        return made[-1]

    yield make
    for one in made:
        if not one.stream.closed:
            one.close()


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("columns", [20, 50, 80, 200])
def test_a_bar_fits_the_terminal_and_is_gone_in_the_end(terminal: Any, columns: int) -> None:
    there = terminal(columns)
    for _ in track(range(30), "counting", total=30):
        time.sleep(0.01)
    there.close()
    assert "counting" in there.text
    assert "/30" in there.text
    assert (("/s" in there.text) and ("left" in there.text)) == (columns >= 50)
    assert all(len(line) <= columns for line in re.split(r"[\r\n]", there.text))
    assert there.screen == []


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_no_bar_is_left_over_after_an_exception(terminal: Any, error: type[BaseException]) -> None:
    there = terminal()
    with pytest.raises(error) as caught:
        for number in track(range(10), "in the loop", total=10):
            if number == 5:
                raise error

    def fail() -> Iterator[int]:
        yield 1
        raise error

    with pytest.raises(error) as other:
        list(track(fail(), "in what is counted", total=10))
    there.close()
    assert caught.value is not other.value  # both, and their frames, are alive here
    assert "in the loop" in there.text
    assert "in what is counted" in there.text
    assert there.screen == []


def refused_shard(folder: Path) -> None:
    (folder / "a.tar").write_bytes(b"no tar" * 300)
    fl.TarDataset(folder / "a.tar")


def refused_sample(folder: Path) -> None:
    fl.CachedDataset(Subset([(1,)], [5]))


@pytest.mark.parametrize("work", [refused_shard, refused_sample])
def test_no_bar_outlives_work_that_fails(
    work: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, end, shown = ProgressBar.__enter__, ProgressBar.__exit__, []
    monkeypatch.setattr(ProgressBar, "__enter__", lambda self: shown.append(self) or begin(self))
    monkeypatch.setattr(ProgressBar, "__exit__", lambda self, *error: shown.remove(self) or end(self, *error))
    with pytest.raises((OSError, IndexError)) as caught:
        work(tmp_path)
    assert caught.value.__traceback__ is not None  # with the frames of the work, as in a notebook
    assert shown == []


def test_nothing_is_written_where_there_is_no_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert list(track(range(3), "counting", total=3)) == [0, 1, 2]
    with open(tmp_path / "log", "w") as log:
        for stream in (log, None):
            monkeypatch.setattr(sys, "stderr", stream)
            assert list(track(range(3), "counting", total=3)) == [0, 1, 2]
    monkeypatch.setattr(sys, "stderr", log)  # closed by now
    assert list(track(range(3), "counting", total=3)) == [0, 1, 2]
    monkeypatch.undo()
    assert (tmp_path / "log").read_text() == ""
    assert capfd.readouterr() == ("", "")


def test_nothing_is_shown_before_its_time_nor_in_worker_processes(
    terminal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = terminal()
    list(track(range(100), "short", total=100, after=60))
    monkeypatch.setattr(progress.multiprocessing, "parent_process", lambda: "somebody")
    list(track(range(100), "in a worker", total=100))
    there.close()
    assert there.written == b""


def test_a_bar_that_comes_late_counts_what_was_done_before(terminal: Any, kind: str) -> None:
    there = terminal()
    with ProgressBar("late", 1000, after=0.2) as bar:
        bar.skip(500)
        bar.advance(100)
        assert there.written == b""
        time.sleep(0.3)
        bar.advance(100)
        time.sleep(0.3)
    there.close()
    assert "700/1000" in there.text
    # 200 steps were worked on, in more than 0.3 seconds; those that were skipped do not count.
    (rate,) = set(re.findall(r"(\d+)/s", there.text))
    assert 0 < int(rate) < 700
    assert there.screen == []


@pytest.mark.usefixtures("kind")
def test_two_bars_do_not_draw_over_each_other(terminal: Any) -> None:
    there = terminal()
    for _ in track(range(3), "outer", total=3):
        assert list(track(range(3), "inner", total=3)) == [0, 1, 2]
    assert list(track(range(3), "next", total=3)) == [0, 1, 2]
    there.close()
    assert "outer" in there.text
    assert "inner" not in there.text
    assert "next" in there.text
    assert there.screen == []


def test_what_is_printed_meanwhile_goes_where_it_belongs(terminal: Any, capsys: Any) -> None:
    pytest.importorskip("rich")
    there = terminal()
    for number in track(range(3), "counting", total=3):
        print("to a pipe", number)
        print("to the terminal", number, file=sys.stderr)
    there.close()
    assert capsys.readouterr().out == "to a pipe 0\nto a pipe 1\nto a pipe 2\n"
    assert there.screen == [f"to the terminal {number}" for number in range(3)]


@pytest.mark.usefixtures("kind")
def test_a_terminal_that_goes_away_does_not_stop_the_work(terminal: Any) -> None:
    there = terminal()
    seen = []
    for number in track(range(4), "counting", total=4):
        if number == 1:
            os.close(there.slave)
            os.dup2(os.open("/dev/full", os.O_WRONLY), there.stream.fileno())
        seen.append(number)
        time.sleep(0.11)
    assert seen == [0, 1, 2, 3]
    there.slave = os.open(os.devnull, os.O_WRONLY)


def test_work_that_has_not_begun_is_given_up_with_the_loop() -> None:
    begun = []

    def work(number: int) -> int:
        begun.append(number)
        time.sleep(0.01)
        return number

    with pytest.raises(ValueError, match="enough"):
        for number in track_threads(work, range(1000), "working"):
            if number == 3:
                raise ValueError("enough")
    assert len(begun) < 900


def preload(folder: Path) -> None:
    fl.CachedDataset(Subset([(np.float32(number), number) for number in range(50)], range(50)))


def eager_images(folder: Path) -> None:
    fl.ImageDataset(folder, loading_mode=fl.LoadingMode.EAGER)


def pack(folder: Path) -> None:
    from foreload.datasets.tar.pack import pack

    # The second run finds all but one shard there.
    target = folder.parent / "packed"
    pack(folder, target, shard_bytes=20_000)
    next(target.glob("*.tar")).unlink()
    pack(folder, target, shard_bytes=20_000)


def index_shards(folder: Path) -> None:
    from foreload.datasets.tar.pack import pack

    pack(folder, folder.parent / "shards", shard_bytes=20_000)
    for index in folder.parent.glob("shards/*.idx"):
        index.unlink()
    fl.TarDataset(folder.parent / "shards")


def text(folder: Path) -> None:
    from foreload.bench.synth import synth_text

    synth_text(folder.parent / "text", 300)
    fl.TextDataset(folder.parent / "text" / "lines.txt", loading_mode=fl.LoadingMode.EAGER)


def tensors_and_hdf5(folder: Path) -> None:
    from foreload.bench.synth import synth_hdf5, synth_tensors

    synth_tensors(folder.parent / "tensors", 70_000, 100, seed=3)
    synth_hdf5(folder.parent / "hdf5", 20_000, 100, seed=3)
    fl.HDF5Dataset(folder.parent / "hdf5" / "data.h5", loading_mode=fl.LoadingMode.EAGER)
    # As when they were made in one piece.
    rng = np.random.default_rng(3)
    values = rng.normal(size=(70_000, 100)).astype(np.float32)
    np.testing.assert_array_equal(np.load(folder.parent / "tensors" / "x.npy"), values)
    np.testing.assert_array_equal(np.load(folder.parent / "tensors" / "y.npy"), rng.integers(0, 10, 70_000))


def doctor(folder: Path) -> None:
    from foreload.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(["doctor", str(folder)])
    assert not ended.value.code


def plan(folder: Path) -> None:
    from foreload.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(["plan", "500", "--epochs", "3", "--budget", "10%,50%"])
    assert not ended.value.code


LONG_WORKS = {
    preload: {"preloading"},
    eager_images: {"listing folders", "reading images"},
    pack: {"packing", "listing folders"},
    index_shards: {"packing", "listing folders", "indexing shards"},
    text: {"lines", "indexing lines.txt (MiB)", "reading text"},
    tensors_and_hdf5: {"rows", "reading chunks"},
    doctor: {"looking"},
    plan: {"plans"},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("work", LONG_WORKS, ids=lambda work: work.__name__)
def test_long_work_is_shown_and_counts_to_its_total(
    work: Callable[[Path], None], terminal: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos").symlink_to(photos)
    begin, seen = ProgressBar.__init__, []

    def at_once(self: ProgressBar, what: str, total: int, *, after: float = 0) -> None:
        begin(self, what, total)
        seen.append(self)

    monkeypatch.setattr(ProgressBar, "__init__", at_once)
    there = terminal()
    work(tmp_path / "photos")
    there.close()
    assert {one._what for one in seen} == LONG_WORKS[work]
    assert all(one._done == one._total > 0 for one in seen)
    assert all(what in there.text for what in LONG_WORKS[work])
    assert there.screen == []


@pytest.mark.slow
def test_interrupted_commands_leave_no_bar(tmp_path: Path) -> None:
    there = Terminal()
    command = [
        "-c",
        "from foreload.cli.main import main; main()",
        "synth",
        str(tmp_path / "new"),
        "--images",
        "100000",
    ]
    process = subprocess.Popen(
        [sys.executable, *command],
        stdin=there.slave, stdout=subprocess.PIPE, stderr=there.slave,
        env={**os.environ, "TERM": "xterm"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 500
    while b"/100000" not in there.written and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    there.close()
    assert "images" in there.text
    assert process.returncode not in (0, None)
    assert out == b""
    assert not [line for line in there.screen if "images" in line]
    assert there.written.rfind(b"\x1b[?25h") > there.written.rfind(b"\x1b[?25l")  # the cursor is back


@pytest.mark.slow
def test_in_a_notebook_the_bar_is_below_the_cell_and_goes(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    client = pytest.importorskip("jupyter_client")
    manager, kernel = client.manager.start_new_kernel(startup_timeout=300)
    try:
        code = "from foreload.record.progress import track\nfor _ in track(range(3), 'counting', total=3): pass"
        outputs: list[Any] = []
        reply = kernel.execute_interactive(code, timeout=300, output_hook=outputs.append)
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", json.dumps(reply["content"])
    shown = [one["content"]["data"]["text/html"] for one in outputs if "data" in one["content"]]
    assert any("counting" in html and "0/3" in html for html in shown)
    assert shown[-1] == ""
    assert not [one for one in outputs if one["msg_type"] == "stream"]
