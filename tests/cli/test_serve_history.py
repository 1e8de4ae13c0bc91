"""The page's history of a loader: whoever looked, and whenever, of running, stopped and ended programs."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload.cli.serve.curves import points
from foreload.cli.serve.seen import LoaderView
from foreload.export import publisher as publishing
from foreload.export.document import PublishedLoader
from foreload.export.history import MAX_BYTES, History, Totals, read, thin
from tests.cli.test_serve import PATIENCE, SERVE, Client
from tests.programs import python, started

for needed in ("starlette", "uvicorn", "plotly"):
    pytest.importorskip(needed)

# Two moments a second, so that a test need not wait.
RECORDED = """
import sys, time
import foreload as fl
from foreload.export import publisher
publisher._RECORD_SECONDS = 0.1
publisher._RECORD_SHARE = 1.0
publisher._Publisher._longest = 5.0  # on a busy machine, less is no sign
loader = fl.DataLoader(list(range(640)), batch_size=64, num_workers=0).publish(name="numbers")
print("ready", flush=True)
while True:
    for batch in loader:
        time.sleep(0.01)
"""


@contextmanager
def server() -> Iterator[Client]:
    with started(*SERVE) as (_, line):
        yield Client(line)


def past(client: Client, seen: Callable[[list[Any]], bool] = bool) -> list[Any]:
    """The curves of the only loader, as a page that is opened now gets them."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with client.events() as events:
            found = next(event for event in events if "loaders" not in event)
        if len(found) == 1 and seen(curve := next(iter(found.values()))):
            return list(curve)
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def moments(folder: Path) -> list[Totals]:
    return [moment for path in folder.glob("foreload-*/*.history") for moment in read(path)]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_a_page_that_is_opened_later_shows_the_time_before(folder: Path) -> None:
    with started("-c", RECORDED):
        wait_for(lambda: len(moments(folder)) > 15)
        opened = time.time()
        with server() as client:
            curve = past(client)
    before = [point for point in curve if point["time"] < opened and point["samples_per_second"]]
    assert len(before) > 5
    assert all(earlier["time"] < later["time"] for earlier, later in itertools.pairwise(curve))


@pytest.mark.slow
def test_what_a_killed_program_has_left_is_shown_by_a_server_that_never_saw_it_alive(folder: Path) -> None:
    with started("-c", RECORDED) as (process, _):
        wait_for(lambda: len(moments(folder)) > 15)
        process.kill()
        process.wait()
    for _ in range(2):  # and by the next one
        with server() as client:
            (loader,) = client.until(lambda all: bool(all) and all[0]["state"] == "ended")
            assert loader["name"] == "numbers"
            assert loader["pid"] == process.pid
            assert loader["stats"]["batches"] > 0
            assert loader["verdict"]["sentence"]
            assert sum(point["samples_per_second"] is not None for point in past(client)) > 5


@pytest.mark.slow
def test_a_stopped_program_leaves_a_gap(folder: Path) -> None:
    with started("-c", RECORDED) as (process, _):
        wait_for(lambda: len(moments(folder)) > 15)
        process.send_signal(signal.SIGSTOP)
        stopped = time.time()
        with server() as client:  # which has never had an answer of it
            (loader,) = client.until(lambda all: bool(all) and all[0]["state"] == "silent")
            assert loader["stats"]["batches"] > 0
            assert any(point["samples_per_second"] for point in past(client))
            wait_for(lambda: time.time() > stopped + 8)
            process.send_signal(signal.SIGCONT)
            goes_on = time.time()
            client.until(lambda all: all[0]["state"] == "running")
            wait_for(lambda: moments(folder)[-1].time > goes_on + 2)
            curve = past(client)
    during = [point for point in curve if stopped + 1 < point["time"] < goes_on]
    assert during == []
    after = next(point for point in curve if point["time"] >= goes_on)
    assert after["gap"]


def test_between_epochs_there_is_a_gap_and_no_zero(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "1-x.1"
    published = PublishedLoader(1, None, path)
    loader = fl.DataLoader(list(range(64)), batch_size=8, num_workers=0)
    now = 1000.0
    monkeypatch.setattr("foreload.export.document.steady_time", lambda: now)

    def record() -> None:
        nonlocal now
        published.save(loader, 15.0)
        now += 5.0

    record()
    record()  # nothing runs
    batches = iter(loader)
    monkeypatch.setattr(loader.recorder.last, "began", time.monotonic() - 5.0)
    next(batches)
    record()
    record()  # the epoch runs on, but the loop takes no batch
    for _ in batches:
        pass
    record()
    record()
    curve = points(read(folder / "1-x.1.history"), 0.0)
    assert [point.gap for point in curve] == [False, True, False, False, True, True]
    assert curve[3].samples_per_second == 0  # the loop holds it up, which is no gap
    assert [point.samples_per_second for point in curve if point.gap] == [curve[2].samples_per_second, None, None]


def test_the_time_for_which_a_machine_was_suspended_is_a_gap(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = 0.0
    clock = time.clock_gettime
    monkeypatch.setattr(
        "foreload.export.history.time.clock_gettime",
        lambda which: clock(which) + (asleep if which == time.CLOCK_BOOTTIME else 0.0),
    )
    published = PublishedLoader(1, None, folder / "1-x.1")
    loader = fl.DataLoader(list(range(64)), batch_size=8, num_workers=0)
    for batch, _ in enumerate(loader):
        asleep += 3600.0 if batch == 2 else 1.0
        published.save(loader, 8.0 + PATIENCE)
    curve = points(read(folder / "1-x.1.history"), 0.0)
    assert [point.gap for point in curve] == [False, False, True, *[False] * 5]


def running(*times: float, epoch: int | None = 0, pace: float = 10.0) -> list[Totals]:
    """The totals of a loop that never waits: ``pace`` batches of 4 samples per second, at these times."""
    return [
        Totals(
            time,
            observed=time,
            batches=pace * time,
            samples=4 * pace * time,
            waited=0.25 * time,
            seconds=time,
            epoch=epoch,
            over=int(pace * time),
        )
        for time in times
    ]


def test_rates_are_those_between_moments() -> None:
    curve = points(running(0, 5, 10, 15), 0.1)
    assert [point.samples_per_second for point in curve] == [40.0] * 4
    assert [point.wait_share for point in curve] == [0.25] * 4
    assert not any(point.gap for point in curve)


def test_the_wait_for_a_batch_that_a_stop_held_up_is_not_blamed_on_the_data() -> None:
    before = running(0, 5)
    stopped = before[-1]._replace(time=100.0)
    late = stopped._replace(time=105.0, observed=10.0, batches=51, samples=204, waited=96.0, seconds=101.0)
    curve = points([*before, stopped, late], 0.1)
    assert curve[2].gap
    assert curve[3].wait_share is None
    assert curve[3].samples_per_second == pytest.approx(4 / 5)


def test_a_week_is_hardly_longer_than_a_day_and_nothing_is_lost_of_the_sums(tmp_path: Path) -> None:
    history = History(tmp_path / "x.history")
    day = 86400
    lengths = {}
    week = running(*range(0, 7 * day, 5))
    kept: list[Totals] = []
    for begin in range(0, len(week), 500):
        kept = thin([*kept, *week[begin : begin + 500]], week[min(begin + 499, len(week) - 1)].time)
        lengths[week[min(begin + 499, len(week) - 1)].time // day] = len(kept)
    assert lengths[6] < 1.5 * lengths[0] < 1500
    assert kept[0] == week[0]
    assert kept[-1] == week[-1]
    assert kept[-20:] == week[-20:]  # the last minutes as they were
    assert {round(point.samples_per_second or 0, 6) for point in points(kept, 0.1)} == {40.0}
    for moment in week[:1600]:
        history.add(moment)
    assert len(read(tmp_path / "x.history")) < 1000
    assert (tmp_path / "x.history").stat().st_mode & 0o077 == 0


def test_a_pause_that_can_be_seen_stays_when_its_neighbours_are_left_out() -> None:
    first = running(*range(0, 3600, 5))
    pause = 600.0
    later = [
        moment._replace(time=moment.time + pause + 3600, observed=moment.observed + 3600, seconds=moment.seconds)
        for moment in running(*range(0, 36000, 5))
    ]
    curve = points(thin([*first, *later], later[-1].time), 0.1)
    (gap,) = [point for point in curve if point.gap]
    assert 3600 + pause - 300 <= gap.time <= 3600 + pause + 300


LINES = [
    b"",
    b"\xff\xfe",
    b"[]",
    b"[1, 2",
    b"5",
    b"{}",
    b"[" * 100_000,
    json.dumps([1e999] * 13).encode(),
    json.dumps(["x"] * 13).encode(),
    json.dumps([-1, *Totals(1.0)[1:]]).encode(),
    json.dumps([*Totals(1.0)[:-1], {"read": "long"}]).encode(),
    json.dumps([*Totals(1.0)[:-1], []]).encode(),
    json.dumps([True, *Totals(1.0)[1:]]).encode(),
]


def test_odd_lines_of_a_history_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.history"
    good = [json.dumps(moment).encode() for moment in running(1, 2, 3)]
    path.write_bytes(b"\n".join([good[0], *LINES, good[1], good[0], good[2], good[1][:20]]))
    assert read(path) == running(1, 2, 3)
    os.unlink(path)
    os.mkfifo(path)
    assert read(path) == []  # without waiting for a writer
    assert read(tmp_path) == []
    assert read(tmp_path / "none") == []
    with open(tmp_path / "long", "wb") as file:
        file.write(good[0] + b"\n")
        file.truncate(4 * MAX_BYTES)
    assert read(tmp_path / "long") == running(1)


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"{}", b'{"foreload": 1, "loaders": []}', b"[" * 100_000], ids=range(6)
)
def test_odd_last_documents_are_no_loaders(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "1-x.1.json").write_bytes(content)
    assert not LoaderView(tmp_path / "1-x.1").read_last()


def test_a_full_disk_does_not_stop_publishing(tmp_path: Path) -> None:
    published = PublishedLoader(1, "x", tmp_path / "no folder" / "1-x.1")
    about = published.describe(fl.DataLoader([1, 2, 3]))
    assert about["moment"]["batches"] == 0
    published.save(fl.DataLoader([1, 2, 3]), 15.0)


@pytest.mark.slow
def test_files_of_ended_loaders_are_removed_but_for_the_last(folder: Path) -> None:
    loader = fl.DataLoader([1, 2, 3]).publish(name="lives")
    (socket,) = folder.glob("foreload-*/*.sock")
    wait_for(lambda: len(list(socket.parent.glob("*.json"))) == 1)
    for number in range(10):
        for suffix in (".json", ".history"):
            (socket.parent / f"1-dead.{number}{suffix}").touch()
            os.utime(socket.parent / f"1-dead.{number}{suffix}", (number, number))
    other = fl.DataLoader([1, 2, 3]).publish(name="dies")
    wait_for(lambda: len(list(socket.parent.glob(f"{socket.stem}.*.json"))) == 2)
    del other
    wait_for(lambda: len(list(socket.parent.glob("*.json"))) == 1 + publishing._MAX_ENDED)
    left = {path.name for path in socket.parent.glob("*.history")}
    assert {f"{socket.stem}.1.history", "1-dead.9.history"} <= left
    assert "1-dead.0.history" not in left
    assert loader.published == "lives"


@pytest.mark.slow
def test_the_last_figures_of_a_program_that_ends_are_complete(folder: Path) -> None:
    code = RECORDED.partition("while True")[0].replace("_SECONDS = 0.1", "_SECONDS = 60.0") + "list(loader)"
    assert python("-c", code, finalize=True).returncode == 0
    (path,) = folder.glob("foreload-*/*.json")
    (loader,) = json.loads(path.read_text())["loaders"]
    assert loader["stats"]["batches"] == 10
    assert not list(folder.glob("foreload-*/*.sock"))


def test_a_wrapper_of_a_loader_is_published_without_it(folder: Path) -> None:
    loader = fl.DataLoader([1, 2, 3])
    fl.export.publish(fl.PrefetchLoader(loader, device="cpu"), name="outer")
    assert loader.published is None


def test_recording_does_less_if_it_takes_longer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = fl.DataLoader([1, 2, 3]).publish()
    publisher = publishing._publisher
    assert publisher is not None
    used = iter([0.0, 9.0, 10.0, 10.5, 11.0, 13.0])
    ours = threading.current_thread()
    monkeypatch.setattr(
        publishing.time, "thread_time", lambda: next(used) if threading.current_thread() is ours else 0.0
    )
    monkeypatch.setattr(PublishedLoader, "save", lambda *_: None)
    publisher._took = 0.0
    seconds = []
    for _ in range(3):
        publisher._record()
        seconds.append(publisher._seconds)
    # One that is slow, such as the first, does not count; two are.
    assert seconds == [5.0, 100.0, 100.0]
    assert loader.published == ""
