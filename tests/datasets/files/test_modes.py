"""The loading modes of files give the same samples, and take the memory that they promise."""

from __future__ import annotations

import copy
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload.options import LoadingMode
from tests.datasets.files.test_samples import fill, plain

MEMORY = """
import os, sys, warnings; warnings.simplefilter("ignore")
import torch, foreload as fl
from torch.utils.data import DataLoader
torch.set_num_threads(1)
MODES = fl.LoadingMode

def mib(name):
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024

class Limited(fl.FileDataset):
    memory = 20 << 20

def growth(make, epochs=1):
    before = mib("Pss_Anon"), mib("Pss_Shmem")
    files = make()
    most = [0, 0]
    for _ in range(epochs):
        for index in range(len(files)):
            assert int(files[index][0]) == index
            if index % 8 == 7:
                now = mib("Pss_Anon") - before[0], mib("Pss_Shmem") - before[1]
                most = list(map(max, most, now))
    return most

folder = sys.argv[1]
fl.FileDataset(folder)[0]
for mode in (MODES.LAZY, MODES.STREAMING):
    assert sum(growth(lambda: fl.FileDataset(folder, loading_mode=mode))) < 16, mode
anon, shared = growth(lambda: Limited(folder, loading_mode=MODES.CACHED), 2)
assert anon < 16 and 16 < shared <= 21, (anon, shared)
try:
    Limited(folder, loading_mode=MODES.EAGER)
    raise SystemExit("EAGER must say that it does not fit")
except MemoryError as error:
    assert "do not fit into 20,971,520 bytes; use LoadingMode.CACHED" in str(error), error
before, private = mib("Pss_Shmem"), mib("Pss_Anon")
eager = fl.FileDataset(folder, loading_mode=MODES.EAGER)
assert 64 <= mib("Pss_Shmem") - before < 68
assert mib("Pss_Anon") - private < 16

class Measured(torch.utils.data.Dataset):
    def __len__(self):
        return len(eager)
    def __getitem__(self, index):
        begun = mib("Pss_Anon")
        for i in range(len(eager)):
            assert int(eager[i][1]) == 0
        return mib("Pss_Anon") - begun, mib("Pss_Shmem")

private, shared = next(iter(DataLoader(Measured(), batch_size=1, num_workers=2)))
assert private < 32 and shared < 50, (private, shared)  # two processes at least hold it

large = fl.FileDataset(folder + "/../large", direct_io=True)
before = mib("Pss_Anon")
for _ in range(2):
    rows = large.__getitems__(range(len(large)))
    del rows
assert mib("Pss_Anon") - before < 120, mib("Pss_Anon") - before
"""


@pytest.mark.slow
def test_memory_of_the_loading_modes(tmp_path: Path) -> None:
    data, large = tmp_path / "data", tmp_path / "large"
    data.mkdir()
    large.mkdir()
    for number in range(64):
        (data / f"{number:03}").write_bytes(bytes([number]) + bytes((1 << 20) - 1))
    for number in range(16):
        with (large / str(number)).open("wb") as file:
            file.truncate(16 << 20)
    subprocess.run([sys.executable, "-c", MEMORY, data], check=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", LoadingMode)
def test_loading_modes_give_the_same(tmp_path: Path, mode: LoadingMode) -> None:
    paths = fill(tmp_path, [3000] * 12)
    expected = [path.read_bytes() for path in paths]
    files = fl.FileDataset(tmp_path, lambda data: data.fill_(7), loading_mode=mode)
    for _ in range(2):  # what a transform does in place stays out of what is kept
        files[0]
    files.transform = None
    for dataset in (files, copy.deepcopy(files), pickle.loads(pickle.dumps(files))):
        for loader in (
            fl.DataLoader(dataset, batch_size=5, num_workers=2),
            fl.DataLoader(dataset, batch_size=5, num_workers=1, workers="processes"),
            TorchDataLoader(dataset, batch_size=5),
        ):
            for _ in range(2):
                assert [data for batch in loader for data, _ in plain(batch)] == expected
    if mode is LoadingMode.EAGER:
        shutil.rmtree(tmp_path)
        assert [data.numpy().tobytes() for data, _ in files] == expected
