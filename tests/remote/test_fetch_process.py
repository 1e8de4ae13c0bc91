"""The process that fetches: killed, interrupted, forked around, and gone with its parent."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import sysconfig
import textwrap
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import foreload as fl
from foreload.remote.fetch import Fetch, Range
from tests import leftovers
from tests.programs import Program
from tests.remote.web_server import COUNT, EACH, SHARDS, expected, right, samples, samples_of

pytestmark = pytest.mark.slow

pytest.importorskip("obstore")


def helpers(of: int | None = None) -> list[psutil.Process]:
    children = [child for child in psutil.Process(of).children() if not leftovers.has_ended(child.pid)]
    return [child for child in children if any(word.endswith("fetch_process.py") for word in child.cmdline())]


def test_the_helper_may_be_killed(folder: Path, serve: Any) -> None:
    server = serve(folder)
    dataset = fl.TarDataset(server.url(SHARDS))
    server.latency = 0.02
    rows = []
    for number, batch in enumerate(fl.DataLoader(dataset, 3, shuffle=True, num_workers=4)):
        rows += samples([batch])
        if number % 5 == 1:
            for helper in helpers():
                helper.kill()
    assert right(rows)
    assert dataset[0] == expected(0)
    assert len(helpers()) == 1


@pytest.mark.slow
def test_nothing_is_left_behind(folder: Path, serve: Any) -> None:
    gone = {child.pid for child in psutil.Process().children()}
    dataset = fl.TarDataset(serve(folder).url(SHARDS))
    open_files = []
    for _ in range(30):
        assert len(samples(fl.DataLoader(dataset, 10, shuffle=True, num_workers=3))) == COUNT * EACH
        # Those of the server's connections are in this process too.
        open_files.append(psutil.Process().num_fds() - len(psutil.Process().net_connections("tcp")))
    assert max(open_files[15:]) <= max(open_files[:15]) + 8
    for _ in range(3):
        for helper in helpers():
            helper.kill()
        assert dataset[1] == expected(1)
    (last,) = helpers()
    del dataset
    assert not last.is_running()
    left = {child.pid: child.status() for child in psutil.Process().children() if child.pid not in gone}
    assert not [pid for pid, status in left.items() if status == psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_many_threads(folder: Path, serve: Any) -> None:
    dataset = fl.TarDataset(serve(folder).url(SHARDS))
    with ThreadPoolExecutor(64) as threads:
        numbers = [number * 7 % len(dataset) for number in range(640)]
        for number, sample in zip(numbers, threads.map(dataset.__getitem__, numbers), strict=True):
            assert sample == expected(number)
    assert len(helpers()) == 1


def test_forks_while_requests_are_under_way(folder: Path, serve: Any) -> None:
    dataset = fl.TarDataset(serve(folder).url(SHARDS))
    stop = threading.Event()

    def read() -> bool:
        exact = True
        while not stop.is_set():
            exact &= dataset[11] == expected(11)
        return exact

    with ThreadPoolExecutor(6) as threads:
        reading = [threads.submit(read) for _ in range(6)]
        children = []
        for number in range(6):
            child = os.fork()
            if child == 0:
                os._exit(0 if all(dataset[i] == expected(i) for i in range(number, 60, 7)) else 1)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
        stop.set()
        assert all(each.result() for each in reading)


def test_an_interrupted_read_keeps_its_memory(folder: Path, serve: Any) -> None:
    server = serve(folder)
    dataset = fl.TarDataset(server.url(SHARDS))
    server.latency = 0.3
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        samples_of(dataset)
    timer.join()
    # What was asked for still arrives, but not where these go.
    server.latency = 0.0
    for _ in range(30):
        assert right([tuple(sample.values()) for sample in samples_of(dataset)])


def test_ranges_as_they_are(folder: Path, serve: Any) -> None:
    server = serve(folder)
    fetch = Fetch()
    content = (folder / "s-0.tar").read_bytes()
    url = server.url("s-0.tar")
    memory, starts, failures = fetch.read([Range(url, 5, 10), Range(url, 7, 0), Range(server.url("no"), 0, 5)])
    assert (starts.tolist(), list(failures)) == ([0, 10, 10, 15], [2])
    assert memory[:10].tobytes() == content[5:15]
    assert fetch.read([])[1].tolist() == [0]
    assert fetch.head(url) == (len(content), f'"{zlib.crc32(content)}"')
    again = pickle.loads(pickle.dumps(fetch))
    assert again.read([Range(url, 0, 9)])[0][:9].tobytes() == content[:9]


SCRIPT = """
    import os, signal, sys, time
    import foreload as fl, psutil
    dataset = fl.TarDataset(sys.argv[1])
    loader = fl.DataLoader(dataset, 2, num_workers=4, workers=sys.argv[2])
    batches = iter(loader)
    next(batches)
    tree = psutil.Process().children(recursive=True)
    helpers = [child.pid for child in tree if any("fetch_process.py" in word for word in child.cmdline())]
    print(*helpers, flush=True)
    {then}
"""


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("end", "workers"),
    [
        ("exit", "threads"),
        ("kill", "processes"),
        pytest.param("interrupt", "threads", marks=pytest.mark.slow),
        pytest.param("exit", "processes", marks=pytest.mark.slow),
        pytest.param("interrupt", "processes", marks=pytest.mark.slow),
        pytest.param("kill", "threads", marks=pytest.mark.slow),
    ],
)
def test_the_helper_ends_with_its_parent(end: str, workers: str, folder: Path, serve: Any) -> None:
    server = serve(folder)
    server.latency = 0.1
    then = "sys.exit(3)" if end == "exit" else "[next(batches) for _ in range(10**6)] and 0 or time.sleep(60)"
    if end == "interrupt":
        then = "list(batches); time.sleep(60)"
    script = textwrap.dedent(SCRIPT).replace("{then}", then)
    program = ["-c", script, server.url(SHARDS), workers]
    process = Program(*program, finalize=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) >= 1
    if end != "exit":
        sign = signal.SIGINT if end == "interrupt" else signal.SIGKILL
        os.killpg(process.pid, sign) if end == "interrupt" else process.send_signal(sign)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == {"exit": 3, "interrupt": -signal.SIGINT, "kill": -signal.SIGKILL}[end]
    if end == "exit":
        assert "Traceback" not in errors
    for pid in pids:
        assert ended(pid)


def ended(pid: int) -> bool:
    """Wait for a process that need not be our child."""
    deadline = time.monotonic() + leftovers.PATIENCE
    while not leftovers.has_ended(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return leftovers.has_ended(pid)


def test_keys_are_not_shown_to_others(folder: Path, serve: Any) -> None:
    secret = {"client_options": {"user_agent": "a-secret-key"}}
    dataset = fl.TarDataset(serve(folder).url(SHARDS), storage=secret)
    assert dataset[0] == expected(0)
    (helper,) = helpers()
    assert "a-secret-key" not in " ".join(helper.cmdline())


@pytest.mark.slow
def test_the_helper_finds_its_library_where_the_program_does(folder: Path, serve: Any) -> None:
    # Without site's own folders, but with what an editable install needs to be found.
    script = (
        "import sys, site; site.addsitedir({site!r}); sys.path[:] = {path!r}; import foreload as fl; "
        "print(len(fl.TarDataset({url!r})))"
    )
    text = script.format(site=sysconfig.get_paths()["purelib"], path=sys.path, url=serve(folder).url(SHARDS))
    found = subprocess.run([sys.executable, "-I", "-S", "-c", text], capture_output=True, text=True, timeout=300)
    assert found.stdout.split() == [str(COUNT * EACH)], found.stderr
