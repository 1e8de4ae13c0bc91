"""Environments of the contestants in build/peers, each on top of .venv, or the reason why there is none.

python benchmarks/peers/install.py [NAME ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "peers"


def packages() -> dict[str, dict[str, Any]]:
    """The contents of packages.toml."""
    content: dict[str, dict[str, Any]] = tomllib.loads((HERE / "packages.toml").read_text())
    return content


def python(name: str) -> Path:
    """The interpreter of a contestant's environment, whether it exists or not."""
    return BUILD / name / "bin" / "python"


def problem(name: str) -> str | None:
    """The reason why a contestant is not installed; None if it is."""
    state = BUILD / f"{name}.json"
    if not state.exists():
        return f"not installed; run `python benchmarks/peers/install.py {name}`"
    content: dict[str, Any] = json.loads(state.read_text())
    reason: str | None = content["problem"]
    return reason


def install(name: str, wanted: dict[str, Any]) -> str | None:
    """Make one environment; return the reason if that fails."""
    venv.create(BUILD / name, with_pip=False, symlinks=True)
    own = subprocess.check_output([python(name), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    base = subprocess.check_output(
        [sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    )
    # A .pth that is reached by addsitedir is read too: an editable foreload stays importable.
    link = f"import site; site.addsitedir({base.decode().strip()!r})\n"
    Path(own.decode().strip(), "base.pth").write_text(link)
    return (
        _apt(wanted.get("apt", []))
        or _pip(name, wanted.get("pip", []))
        or _pip(name, wanted.get("alone", []), "--no-deps")
    )


def _apt(names: list[str]) -> str | None:
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    missing = [name for name in names if subprocess.run(["dpkg", "-s", name], capture_output=True).returncode]
    return (
        _run([*as_root, "apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing])
        if missing
        else None
    )


def _pip(name: str, names: list[str], *options: str) -> str | None:
    if not names:
        return None
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python(name)),
        "install",
        "-q",
        "--disable-pip-version-check",
    ]
    return _run([*command, "-c", str(HERE / "constraints.txt"), *options, *names])


def _run(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return str(error)
    lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it failed without a word"]
    errors = [line for line in lines if "error" in line.lower()] or lines
    return f"{' '.join(command[:4])} ...: {errors[-1].strip()}" if done.returncode else None


def main() -> None:
    wanted = packages()
    for name in sys.argv[1:] or wanted:
        state = BUILD / f"{name}.json"
        entry = {
            "packages": {key: wanted[name][key] for key in ("pip", "alone", "apt") if key in wanted[name]},
            "python": sys.version,
            "problem": None,
        }
        if state.exists() and json.loads(state.read_text()) == entry:
            continue
        print(f"==> {name}", flush=True)
        BUILD.mkdir(parents=True, exist_ok=True)
        entry["problem"] = install(name, wanted[name])
        state.write_text(json.dumps(entry, indent=1) + "\n")
        if entry["problem"]:
            print(f"    not installed: {entry['problem']}", flush=True)


if __name__ == "__main__":
    main()
