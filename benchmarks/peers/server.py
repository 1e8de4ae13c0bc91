"""A web server with latency, over a workload's folder."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from benchmarks.peers.work import ROOT, Work


def build() -> Path:
    """Compile slow_server.cpp unless that is done."""
    program, source = ROOT / "build" / "slow_server", ROOT / "benchmarks" / "slow_server.cpp"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(exist_ok=True)
        subprocess.run(["c++", "-O2", "-std=c++20", "-o", program, source], check=True)
    return program


def start(work: Work) -> list[str]:
    """Serve the shards from a process that ends with this process's group; return their addresses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [build(), work.folder, str(port), str(work.options["milliseconds"])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return [f"http://127.0.0.1:{port}/{path.name}" for path in sorted(work.folder.glob("*.tar"))]
