"""The release: one version, the sdist, and messages whose remedies work for everyone who has the package."""

from __future__ import annotations

import hashlib
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
import yaml

import foreload
from foreload.cli.commands import app

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_in_one_place_and_has_its_changes() -> None:
    assert "version" in PROJECT["dynamic"]
    assert re.search(rf"^## {re.escape(foreload.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(foreload.__file__).parent / "py.typed").is_file()


def test_libraries_that_are_compiled_in_come_with_their_licences() -> None:
    """The Independent JPEG Group's, BSD and MIT ask for it wherever only compiled code is given."""
    texts = {name: (ROOT / name).read_text() for name in PROJECT["license-files"]}
    assert set(texts) == {"LICENSE", "LICENSES.txt"}
    libraries = texts["LICENSES.txt"]
    assert "This software is based in part on the work of the Independent JPEG Group." in libraries
    for owner in ("Thomas G. Lane", "D. R. Commander", "MIYASAKA Masaru", "Wenzel Jakob", "Goetghebuer-Planchon"):
        assert owner in libraries
    assert {f"!{name}" for name in texts} <= set((ROOT / ".dockerignore").read_text().split())


def test_messages_name_packages_to_install() -> None:
    """A name such as foreload[yaml] would be looked up in an index, where foreload may not be, or be another."""
    extras = " ".join(" ".join(extra) for extra in PROJECT["optional-dependencies"].values())
    known = {*re.findall(r"([\w-]+)\S*>=", extras), "nvtx"}
    named = {
        package
        for path in Path(foreload.__file__).parent.rglob("*.py")
        for command in re.findall(r"pip install ([^\")]+)", path.read_text())
        for package in command.split()
    }
    assert {"h5py", "typer", "plotly"} <= named
    assert named <= known


def test_packages_of_the_system_have_names_that_debian_and_ubuntu_share() -> None:
    """libjpeg62-turbo-dev is Debian's alone, libjpeg-turbo8-dev Ubuntu's; both know libjpeg-dev."""
    tree = [ROOT / name for name in ("README.md", "CMakeLists.txt", "Dockerfile", "docs", "scripts", ".github")]
    texts = {
        path: path.read_text()
        for root in [*tree, Path(foreload.__file__).parent]
        for path in ([root] if root.is_file() else root.rglob("*"))
        if path.suffix in {".md", ".py", ".sh", ".txt", ".yml", ""} and path.is_file()
    }
    named = {
        (path.name, package) for path, text in texts.items() for package in re.findall(r"\blib[\w.-]+-dev\b", text)
    }
    assert {"README.md", "doctor.py", "setup.sh"} <= {name for name, _ in named}
    assert {package for _, package in named} == {"libjpeg-dev"}, named


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.stem
)
def test_workflows_run_scripts_that_are_there(path: Path) -> None:
    steps = [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]
    scripts = re.findall(r"scripts/\w+\.\w+", " ".join(step.get("run", "") for step in steps))
    assert all((ROOT / script).is_file() for script in scripts), scripts


@pytest.mark.skipif(not (ROOT / ".ci" / "run").exists(), reason="not in a checkout")
def test_the_workflow_sets_up_what_the_steps_of_ci_run_need() -> None:
    """Tests are skipped where a package or a browser is missing."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    steps = "\n".join(step.get("run", "") for step in jobs["slow"]["steps"])
    own = (ROOT / ".ci" / "run").read_text()
    sets, own_sets = (re.findall(r"^scripts/setup\.sh ([a-z ]+?)(?: \||$)", text, re.M) for text in (steps, own))
    assert own_sets
    assert sets == own_sets
    assert "chromium" in own
    assert "install -y -qq chromium" in steps


_SAMPLES = """
python 7 50.1:   20408163 cpu-clock:u:
\t    1a2b decode+0x46 (/opt/_native.so)
\t    7fde [unknown] (/usr/bin/python3.11)
\t     8f6 main (/usr/bin/python3.11)

pt_data_worker 8 50.2:   20408163 cpu-clock:u:
\t    1aee Type<int (long)>::get+0x37 (/opt/_native.so)
"""


def test_a_flame_graph_has_every_stack(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "flame_graph.py"))
    counts = script["count_prefixes"](script["read_stacks"](_SAMPLES.splitlines()))
    assert counts[()] == 2
    assert counts["python", "Python", "decode"] == 1
    assert counts["pt_data_worker", "Type<int (long)>::get"] == 1
    script["draw"](counts, tmp_path / "flames.html")
    assert '"decode"' in (tmp_path / "flames.html").read_text()


def test_commands_of_containers_are_foreloads() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert services.keys() == {"benchmark", "perf-analysis", "webapp"}
    assert "5000:5000" in services["webapp"]["ports"][0]
    for name, command in (("benchmark", "bench"), ("webapp", "serve")):
        program, *arguments = services[name]["command"]
        assert (program, arguments[0]) == ("foreload", command)
        options = {option for one in typer.main.get_command(app).commands[command].params for option in one.opts}
        assert {argument for argument in arguments if argument.startswith("--")} <= options


def test_the_check_of_containers_runs_each_service() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    script = (ROOT / "scripts" / "containers.sh").read_text()
    assert re.findall(r'^echo "==> (.+)"$', script, re.MULTILINE) == list(services)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("scikit_build_core") is None, reason="needs scikit-build-core")
def test_the_sdist_holds_no_build_products_and_makes_the_same_wheel(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    made = (".venv", "env", "venv", "build", "dist", "data", "*_cache", ".hypothesis")
    ignored = shutil.ignore_patterns(".git", "results", *made)
    shutil.copytree(ROOT, tree, ignore=ignored)
    products = [
        "build/cp311/core.o",
        "src/foreload/old.so",
        "native/core/pool.o",
        "native/libcore.a",
        "data/a.jpg",
    ]
    products += ["src/foreload/__pycache__/loader.pyc", "dist/foreload-0.0.1.tar.gz"]
    products += [f"{environment}/lib/python.py" for environment in (".venv", "env", "venv")]
    for product in products:
        (tree / product).parent.mkdir(parents=True, exist_ok=True)
        (tree / product).write_bytes(b"made here")
    (tree / ".gitignore").unlink()  # as in a copy that git has not made
    name = _build("sdist", tree, tmp_path)
    with tarfile.open(tmp_path / name) as sdist:
        names = {member.partition("/")[2] for member in sdist.getnames()}
        sdist.extractall(tmp_path, filter="data")
    assert not names & set(products)
    assert not {name for name in names if name.endswith((".o", ".a", ".so", ".pyc"))}
    assert {"CMakeLists.txt", "native/core/workers/pool.hpp", "src/foreload/py.typed"} <= names
    assert set(PROJECT["license-files"]) <= names

    # All that the native module is compiled of is the same; scripts/wheel.sh compiles it from the sdist.
    unpacked = tmp_path / name.removesuffix(".tar.gz")
    sources = [tree / "CMakeLists.txt", *(path for path in (tree / "native").rglob("*") if path.is_file())]
    for path in sources:
        if str(path.relative_to(tree)) not in products:
            assert (unpacked / path.relative_to(tree)).read_bytes() == path.read_bytes()
    from_tree, from_sdist = (
        _contents(tmp_path / _build("wheel", root, tmp_path, {"wheel.cmake": "false", "wheel.py-api": "py3"}))
        for root in (tree, unpacked)
    )
    assert "foreload/py.typed" in from_tree
    assert f"foreload-{foreload.__version__}.dist-info/licenses/LICENSES.txt" in from_tree
    assert from_sdist == from_tree


def _build(what: str, tree: Path, into: Path, settings: dict[str, str] | None = None) -> str:
    """Build with the packages of this environment; return the file's name."""
    code = f"from scikit_build_core import build; print(build.build_{what}({str(into)!r}, {settings or {}}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.splitlines()[-1]


def _contents(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}
