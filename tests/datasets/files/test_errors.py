"""Files that change, are missing or cannot be read are errors that say which file."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload.errors import DecodeError
from foreload.options import LoadingMode
from tests.datasets.files.test_samples import fill, plain
from tests.shims import build_shim

ON_ERROR: tuple[Any, ...] = ("raise", "skip", "replace")


def spoil(path: Path, how: str) -> type[Exception]:
    if how == "removed":
        path.unlink()
        return FileNotFoundError
    if how == "a folder":
        path.unlink()
        path.mkdir()
        return IsADirectoryError
    with path.open("r+b") as file:
        file.truncate({"truncated": 2000, "grown": 5000, "emptied": 0}[how])
    return DecodeError


@pytest.mark.parametrize("direct_io", [False, True])
@pytest.mark.parametrize("how", ["removed", "a folder", "truncated", "grown", "emptied"])
def test_files_that_change_in_mid_epoch(tmp_path: Path, how: str, direct_io: bool) -> None:
    paths = fill(tmp_path, [4000] * 40)
    contents = [path.read_bytes() for path in paths]
    files = fl.FileDataset(tmp_path, direct_io=direct_io)
    loaders = [fl.DataLoader(files, batch_size=8, num_workers=0, on_error=on_error) for on_error in ON_ERROR]
    loaders.append(fl.DataLoader(files, batch_size=8, num_workers=2, prefetch_factor=1, on_error="skip"))
    running = [iter(loader) for loader in loaders]
    stock = iter(TorchDataLoader(files, batch_size=8))
    for each in [*running, stock]:
        next(each)
    expected = spoil(paths[37], how)
    for each in (running[0], stock):
        with pytest.raises(expected) as raised:
            list(each)
        assert str(paths[37]) in str(raised.value)
        assert "sample 37" in str(raised.value)
    if expected is DecodeError:
        assert "and had 4000 when the dataset was opened" in str(raised.value)
    left = [[data for batch in each for data, _ in plain(batch)] for each in running[1:]]
    without = [content for number, content in enumerate(contents) if number != 37]
    assert left[0] == without[8:] == left[2]
    assert left[1] == [*without[8:37], contents[38], *without[37:]]
    for loader in loaders[1:]:
        (error,) = loader.errors
        assert (error.index, error.source) == (37, str(paths[37]))


def test_a_missing_file_is_one_sample(tmp_path: Path) -> None:
    paths = fill(tmp_path, [4000] * 10)
    files = fl.FileDataset(paths)
    paths[3].unlink()
    loader = fl.DataLoader(files, batch_size=5, on_error="skip")
    assert [len(batch) for batch in loader] == [4, 5]
    assert [error.index for error in loader.errors] == [3]
    with pytest.raises(FileNotFoundError, match=paths[3].name):
        list(TorchDataLoader(files, batch_size=5))
    with pytest.raises(FileNotFoundError, match=paths[3].name):
        fl.FileDataset(paths, loading_mode=LoadingMode.EAGER)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be someone else")
@pytest.mark.parametrize("direct_io", [False, True])
def test_permission_denied(direct_io: bool) -> None:
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        paths = fill(Path(made), [4000] * 6)
        for path in paths:
            path.chmod(0o644)
        paths[4].chmod(0o600)
        loader = fl.DataLoader(fl.FileDataset(made, direct_io=direct_io), batch_size=6, on_error="skip")
        os.seteuid(65534)
        try:
            ((data, _),) = loader
            with pytest.raises(PermissionError, match=paths[4].name):
                loader.dataset[4]
        finally:
            os.seteuid(0)
        assert len(data) == 5
        assert "Permission denied" in loader.errors[0].error


SHIM = r"""
#define WRAP(name, args, pass)                                   \
  ssize_t name args {                                            \
    static ssize_t(*real) args;                                  \
    if (!real) real = (ssize_t(*) args)dlsym(RTLD_NEXT, #name);  \
    if (ends(fd, ".eio")) { errno = EIO; return -1; }            \
    return real pass;                                            \
  }
WRAP(read, (int fd, void* to, size_t n), (fd, to, n))
WRAP(pread, (int fd, void* to, size_t n, off_t at), (fd, to, n, at))
WRAP(pread64, (int fd, void* to, size_t n, off_t at), (fd, to, n, at))
WRAP(preadv, (int fd, const struct iovec* to, int n, off_t at), (fd, to, n, at))
WRAP(preadv64, (int fd, const struct iovec* to, int n, off_t at), (fd, to, n, at))
"""

FAULTY = """
import sys, warnings; warnings.simplefilter("ignore")
import foreload as fl
for direct_io in (False, True):
    files = fl.FileDataset(sys.argv[1], direct_io=direct_io)
    try:
        list(fl.DataLoader(files, batch_size=4, num_workers=0))
    except OSError as error:
        print(error.errno, error.filename.rpartition("/")[2], "sample 5" in str(error))
    loader = fl.DataLoader(files, batch_size=4, num_workers=2, on_error="skip")
    print(sum(map(len, loader)), [error.index for error in loader.errors])
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_read_error(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(10):
        (data / f"{number}.{'eio' if number == 5 else 'bin'}").write_bytes(bytes(3000))
    result = subprocess.run(
        [sys.executable, "-c", FAULTY, data],
        env={**os.environ, "LD_PRELOAD": str(build_shim(tmp_path, SHIM))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines() == [f"{errno.EIO} 5.eio True", "9 [5]"] * 2


@pytest.mark.parametrize("kind", [fl.FileDataset, fl.ImageDataset])
def test_labels_without_a_length_are_named(tmp_path: Path, kind: Any) -> None:
    for labels in ((number for number in [1]), 3):
        with pytest.raises(TypeError, match="labels must be a list or an array, one int or one str per file"):
            kind([tmp_path / "a.jpg"], labels=labels)


def test_direct_io_is_true_or_false(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    wrong: Any = "False"
    with pytest.raises(TypeError, match="direct_io must be True or False, got 'False'"):
        fl.FileDataset(tmp_path, direct_io=wrong)


def test_an_unknown_loading_mode_is_named_and_the_known_ones_are_listed() -> None:
    for mode in ("EAGER", 3):
        with pytest.raises(ValueError, match=f"loading_mode must be .*'lazy', 'eager'.*, got {mode!r}"):
            LoadingMode(mode)


class _Odd(fl.BaseDataset):
    count = 3

    def index(self) -> int:
        return self.count

    def read(self, index: int) -> int:
        if index == 1:
            raise ValueError("no number")
        return index


def test_the_sample_that_cannot_be_read_at_the_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no number") as caught:
        _Odd(tmp_path, loading_mode=LoadingMode.EAGER)
    assert caught.value.__notes__ == [f"foreload: while loading sample 1 of {str(tmp_path)!r}"]


class _Functions(_Odd):
    def read(self, index: int) -> Any:
        return index if index == 0 else lambda: index


def test_the_sample_that_cannot_be_kept_at_the_start_is_named_instead_of_the_memory(tmp_path: Path) -> None:
    with (
        pytest.warns(UserWarning, match="sample 1 cannot be cached, it cannot be pickled"),
        pytest.raises(TypeError, match=r"sample 1 of '.*' cannot be kept .*LAZY"),
    ):
        _Functions(tmp_path, loading_mode=LoadingMode.EAGER)


def test_a_count_below_zero_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Odd, "count", -3)
    with pytest.raises(ValueError, match=r"_Odd.index\(\) must return the samples, or how many there are, got -3"):
        _Odd(tmp_path)


class _Uncalled(_Odd):
    def __init__(self) -> None:
        pass


def test_a_dataset_without_its_base_class_says_what_is_missing() -> None:
    for use in (len, lambda dataset: dataset[0]):
        with pytest.raises(RuntimeError, match=r"_Uncalled.__init__ must call super\(\).__init__\(data_path\)"):
            use(_Uncalled())
