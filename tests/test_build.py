"""The message of CMake on a system that the core cannot be built on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEADERS = [Path("/usr/include") / name for name in ("jpeglib.h", "jmorecfg.h", "jerror.h", "jpegint.h")]


@pytest.mark.slow
def test_headers_of_another_libjpeg_are_refused(tmp_path: Path) -> None:
    config = next(Path("/usr/include").glob("**/jconfig.h"), None)
    if config is None or not all(map(Path.exists, HEADERS)) or shutil.which("cmake") is None:
        pytest.skip("needs cmake and libjpeg-turbo's headers in /usr/include")
    headers = tmp_path / "headers"
    headers.mkdir()
    for header in HEADERS:
        shutil.copy(header, headers)
    line = next(each for each in config.read_text().splitlines() if "define JPEG_LIB_VERSION " in each)
    (headers / "jconfig.h").write_text(config.read_text().replace(line, "#define JPEG_LIB_VERSION 70"))

    def configure(*options: str) -> str:
        command = ["cmake", "-S", ROOT, "-B", tmp_path / f"build{len(options)}", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return f"{done.returncode} {' '.join((done.stdout + done.stderr).split())}"

    assert configure().startswith("0 ")
    refused = configure(f"-DJPEG_INCLUDE_DIR={headers}")
    assert refused.startswith("1 ")
    assert f"does not fit the headers in {headers}" in refused
    assert "Wrong JPEG library version" in refused
