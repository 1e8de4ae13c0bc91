"""The page shows the other loaders, whatever one process answers or writes."""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload.cli.serve.seen import LoaderView
from foreload.cli.serve.snapshot import parse
from foreload.export.publisher import current_document
from tests.cli.served import PATIENCE, Page

for needed in ("starlette", "uvicorn", "plotly"):
    pytest.importorskip(needed)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """Return what a process answers about a loader that has run."""
    loader = fl.DataLoader(list(range(64)), batch_size=4, cache="1MiB", num_workers=2, workers="threads")
    for _ in range(2):
        list(loader)
    found: dict[str, Any] = json.loads(json.dumps(current_document([(1, "honest", loader)]), default=str))
    loader.close()
    return found


def sends(content: bytes) -> Callable[[socket.socket], None]:
    def answer(client: socket.socket) -> None:
        client.sendall(content)
        client.close()

    return answer


def slow(client: socket.socket) -> None:
    for _ in range(20):
        client.sendall(b" ")
        threading.Event().wait(0.05)


def endless(client: socket.socket) -> None:
    for _ in range(64):
        client.sendall(b"[" * (1 << 20))


def changed(document: dict[str, Any], **values: Any) -> bytes:
    return json.dumps({**document, **values}).encode()


def with_stats(document: dict[str, Any], **values: Any) -> bytes:
    (loader,) = document["loaders"]
    return changed(document, loaders=[{**loader, "stats": {**loader["stats"], **values}}])


ANSWERS: dict[str, Any] = {
    "nothing": lambda document: sends(b""),
    "garbage": lambda document: sends(random.Random(0).randbytes(5000)),
    "half": lambda document: sends(json.dumps(document).encode()[:-100]),
    "a list": lambda document: sends(b"[1, 2]"),
    "a number": lambda document: sends(b"5"),
    "a string": lambda document: sends(b'"foreload"'),
    "null": lambda document: sends(b"null"),
    "a deep list": lambda document: sends(b"[" * 500_000),
    "a deep field": lambda document: sends(
        changed(document).replace(b'"honest"', b'{"a":' * 900 + b"1" + b"}" * 900)
    ),
    "a long number": lambda document: sends(b"1" * 100_000),
    "too much": lambda document: endless,
    "a byte at a time": lambda document: slow,
    "no answer": lambda document: lambda client: None,
    "loaders that are a number": lambda document: sends(changed(document, loaders=3)),
    "loaders that are an object": lambda document: sends(changed(document, loaders={"a": 1})),
    "loaders that are numbers": lambda document: sends(changed(document, loaders=[1, None, "x", [], {}])),
    "a process that is a list": lambda document: sends(changed(document, pid=[], script={}, rank="first")),
    "no process": lambda document: sends(json.dumps({"foreload": 1, "loaders": document["loaders"]}).encode()),
    "another version": lambda document: sends(changed(document, foreload=[2])),
    "a hundred thousand loaders": lambda document: sends(
        changed(document, loaders=[{"number": number, "name": "x"} for number in range(100_000)])
    ),
    "stats that are a list": lambda document: sends(changed(document, loaders=[{"number": 1, "stats": [1]}])),
    "infinite figures": lambda document: sends(with_stats(document, samples=5).replace(b"5", b"1e999")),
    "no figures": lambda document: sends(with_stats(document, samples=77777).replace(b"77777", b"NaN")),
    "enormous figures": lambda document: sends(with_stats(document, samples=10**400, seconds=-(10**400))),
    "tiny figures": lambda document: sends(with_stats(document, seconds=5e-324, wait_seconds=1e300)),
    "words for figures": lambda document: sends(
        with_stats(document, samples="many", stages={"read": {"seconds": "long"}, "x": 3}, cache=[], memory=0)
    ),
    "no stages": lambda document: sends(with_stats(document, stages=None, batch_seconds={"median": None})),
    "half surrogates": lambda document: sends(changed(document).replace(b"honest", rb"\ud800")),
    "moments that are none": lambda document: sends(
        changed(document, loaders=[{**document["loaders"][0], "moment": {"time": "now", "stages": []}}])
    ),
    "a moment that cannot be": lambda document: sends(
        changed(document).replace(b'"moment": {"time": ', b'"moment": {"time": -')
    ),
    "an epoch of another kind": lambda document: sends(
        with_stats(document, epoch={"number": 1e300, "batches": -1, "length": "all", "running": 5})
    ),
    "failures of another kind": lambda document: sends(
        changed(document, loaders=[{**document["loaders"][0], "failures": [{"error": 1}, 3, {"example": []}]}])
    ),
    "figures of the page": lambda document: sends(
        changed(document, loaders=[{**document["loaders"][0], "id": [], "state": {}, "point": 1, "verdict": 1}])
    ),
}


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ANSWERS)
def test_any_answer_leaves_the_other_loaders_shown(page: Page, document: dict[str, Any], kind: str) -> None:
    answers = 0

    def honest(client: socket.socket) -> None:
        nonlocal answers
        answers += 1
        sends(changed(document))(client)

    with page.answering(honest) as good, page.answering(ANSWERS[kind](document)) as bad:
        state = page.until(
            lambda state: answers > 1 and any(one["id"] == f"{good}.1" for one in state["loaders"]),
        )
        (shown,) = [one for one in state["loaders"] if one["id"] == f"{good}.1"]
        assert shown["state"] == "running"
        assert shown["name"] == "honest"
        assert shown["stats"] == document["loaders"][0]["stats"]
        assert shown["spans"] == document["loaders"][0]["spans"]
        for other in state["loaders"]:
            assert isinstance(other["id"], str)
            assert other["state"] in ("running", "silent", "ended")
        assert sum(other["id"].startswith(bad) for other in state["loaders"]) <= 100
    # Nor do those who listen miss it.
    assert page.process.poll() is None


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["folder", "pipe", "file", "link to nowhere", "loop", "no utf-8", "dots"])
def test_odd_entries_among_the_sockets_are_passed_over(page: Page, document: dict[str, Any], kind: str) -> None:
    name = os.fsencode(page.folder) + {"no utf-8": b"/\xff-1.sock", "dots": b"/a.b.c.sock"}.get(
        kind, b"/9-odd.sock"
    )
    try:
        if kind == "folder":
            os.mkdir(name)
        elif kind == "pipe":
            os.mkfifo(name)
        elif kind in ("link to nowhere", "loop"):
            os.symlink(b"nowhere" if kind == "link to nowhere" else name, name)
        elif kind == "file":
            Path(os.fsdecode(name)).touch()
        else:
            with socket.socket(socket.AF_UNIX) as unheard:
                unheard.bind(name)
        with page.answering(sends(changed(document))) as good:
            page.until(lambda state: any(one["id"] == f"{good}.1" for one in state["loaders"]))
    finally:
        if kind == "folder":
            os.rmdir(name)
        else:
            with suppress(FileNotFoundError):
                os.unlink(name)


WRITTEN: dict[str, bytes] = {
    "nothing": b"",
    "garbage": random.Random(1).randbytes(5000),
    "deep": b"[" * 500_000,
    "odd moments": b"[1e999]\n[]\n5\n" + json.dumps([[]] * 13).encode() + b"\n" + b"[1" + b",1" * 10_000 + b"]\n",
    "moments without end": b"".join(
        json.dumps([i, *[i] * 8, None, 0, 0, {}]).encode() + b"\n" for i in range(60_000)
    ),
    "a long line": b"[" + b"1" * (16 << 20),
}


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", WRITTEN)
def test_any_file_leaves_the_other_loaders_shown(page: Page, document: dict[str, Any], kind: str) -> None:
    written = [page.folder / f"8-{kind.replace(' ', '')}.{number}" for number in range(3)]
    for path in written:
        path.with_name(f"{path.name}.history").write_bytes(WRITTEN[kind])
    # The first is a loader that has ended, the second none, the third neither file nor folder.
    (loader,) = document["loaders"]
    moment = {**loader["moment"], "time": time.time() + PATIENCE}  # the latest of those that have ended are shown
    last = changed(document, loaders=[{**loader, "moment": moment}])
    written[0].with_name(f"{written[0].name}.json").write_bytes(last)
    written[1].with_name(f"{written[1].name}.json").write_bytes(WRITTEN[kind])
    os.mkfifo(written[2].with_name(f"{written[2].name}.json"))
    try:
        with page.answering(sends(changed(document))) as good:
            state = page.until(
                lambda state: {f"{good}.1", written[0].name} <= {one["id"] for one in state["loaders"]}
            )
            states = {one["id"]: one["state"] for one in state["loaders"]}
            assert states[f"{good}.1"] == "running"
            assert states[written[0].name] == "ended"
            assert not {path.name for path in written[1:]} & states.keys()
            request = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
            with socket.create_connection(("127.0.0.1", page.port), timeout=PATIENCE) as client:
                client.sendall(request)
                lines = client.makefile("rb")
                line = next(line for line in lines if line.startswith(b"data: "))
                curves = json.loads(line[6:], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
                assert all(len(curve) <= 5001 for curve in curves.values())
    finally:
        for path in written:
            path.with_name(f"{path.name}.history").unlink()
            path.with_name(f"{path.name}.json").unlink(missing_ok=True)


KINDS = [
    None,
    True,
    -1,
    0,
    1e300,
    10**30,
    -(10**30),
    5e-324,
    "",
    "x",
    "x" * 5000,
    [],
    [[]],
    [None] * 3,
    {},
    {"a": {}},
]


def change(value: Any, random: random.Random) -> Any:
    """Return a value with a part of it exchanged, left out or added."""
    if random.random() < 0.15 or not isinstance(value, (dict, list)) or not value:
        return random.choice(KINDS)
    if isinstance(value, dict):
        name = random.choice(list(value))
        kind = random.random()
        if kind < 0.1:
            return {key: part for key, part in value.items() if key != name}
        return {**value, ("more" if kind < 0.15 else name): change(value[name], random)}
    at = random.randrange(len(value))
    return [*value[:at], change(value[at], random), *value[at + 1 :]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(8))
def test_changed_documents_make_states_that_browsers_read(document: dict[str, Any], seed: int) -> None:
    rng = random.Random(seed)
    view = LoaderView()
    for _ in range(250):
        hostile = document
        for _ in range(rng.randint(1, 6)):
            hostile = change(hostile, rng)
        for about in parse(json.dumps(hostile).encode()):
            view.update(about)
            shown = view.to_dict()
            json.dumps(shown, allow_nan=False)
            json.dumps([point._asdict() for point in view.points()], allow_nan=False)
            spans = shown.get("spans")
            if spans is not None:
                assert max(spans["lane"], default=0) < max(1, len(spans["lanes"]))
                assert {len(spans[name]) for name in ("begin", "length", "batch")} == {len(spans["lane"])}
            assert isinstance(shown["name"], str)
            assert isinstance(shown.get("stats", {}), dict)


@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_make_no_exception(document: dict[str, Any], seed: int) -> None:
    rng = random.Random(seed)
    good = json.dumps(document).encode()
    for _ in range(500):
        content = bytearray(good)
        for _ in range(rng.randint(1, 20)):
            content[rng.randrange(len(content))] = rng.choice(b'{}[],:"0e-\\\xff')
        for about in parse(bytes(content[: rng.choice((len(content), rng.randrange(len(content))))])):
            LoaderView().update(about)


def test_the_state_is_there_without_viewers(page: Page, document: dict[str, Any]) -> None:
    with page.answering(sends(changed(document))) as name:
        threading.Event().wait(1.1)  # a state of less than a second ago would do
        state = page.state()
        assert f"{name}.1" in [one["id"] for one in state["loaders"]]
        assert state["viewers"] == 0
        assert abs(state["time"] - time.time()) < PATIENCE
        before = {one["id"]: one["until"] for one in state["loaders"]}[f"{name}.1"]
        page.until(
            lambda state: any(one["id"] == f"{name}.1" and one["until"] > before for one in state["loaders"])
        )


@pytest.mark.slow
def test_no_process_is_asked_while_nobody_looks(page: Page, document: dict[str, Any]) -> None:
    page.until(lambda state: state["viewers"] == 0)
    asked: list[float] = []

    def answer(client: socket.socket) -> None:
        asked.append(time.monotonic())
        sends(changed(document))(client)

    with page.answering(answer):
        threading.Event().wait(2.5)
        assert not asked


def test_many_who_ask_for_the_state_at_once_are_one_reading(page: Page, document: dict[str, Any]) -> None:
    asked: list[float] = []

    def answer(client: socket.socket) -> None:
        asked.append(time.monotonic())
        sends(changed(document))(client)

    with page.answering(answer):
        began = time.monotonic()
        threads = [threading.Thread(target=page.state) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(asked) <= 2 + (time.monotonic() - began)
