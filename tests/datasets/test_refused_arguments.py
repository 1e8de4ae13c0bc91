"""Arguments that would be taken for something else, or for nothing, are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import foreload as fl
from tests.datasets.tar.shards import write_tar


@pytest.mark.parametrize("dataset", [fl.ImageDataset, fl.FileDataset])
def test_a_set_of_files_has_no_order_for_labels(dataset: Any, files: list[str]) -> None:
    with pytest.raises(TypeError, match=r"data_path is a set.*sorted\(data_path\)"):
        dataset(set(files), labels=[0, 1])


@pytest.mark.parametrize("dataset", [fl.ImageDataset, fl.FileDataset, fl.MemoryEfficientDataset, fl.TextDataset])
def test_an_empty_path_is_not_the_present_folder(
    dataset: Any, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(files[0]).parent)
    with pytest.raises(FileNotFoundError, match=r"data_path: there is no.* ''"):
        dataset("")


def test_switches_are_true_or_false(files: list[str]) -> None:
    with pytest.raises(TypeError, match="direct_io must be True or False, got 1"):
        fl.ImageDataset(files, direct_io=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"), [("text_field", "body"), ("label_field", "class"), ("label_field", 1)], ids=str
)
@pytest.mark.parametrize("is_folder", [False, True])
def test_texts_without_fields_have_no_labels_to_name(
    name: str, value: Any, is_folder: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("meow\n")
    with pytest.raises(ValueError, match=rf"{name}={value!r}: the texts of .* have no fields; \.csv"):
        fl.TextDataset(tmp_path if is_folder else path, **{name: value})
    assert len(fl.TextDataset(path, label_field=None)) == 1


def test_a_column_may_be_an_int_of_numpy(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("meow,1\npurr,0\n")
    texts = fl.TextDataset(tmp_path / "a.csv", text_field=np.int64(0), label_field=np.int64(-1))  # type: ignore[arg-type]
    assert texts.targets == [1, 0]


@pytest.mark.parametrize("text", ['[{"text": "a"}]', '[\n {"text": "a"}\n]'])
def test_an_array_in_a_json_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json:1 .*each line must be one object"):
        fl.TextDataset(tmp_path / "a.json")


def test_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("café\n".encode("latin-1"))
    with pytest.raises(UnicodeDecodeError, match=r"a\.txt:1; texts must be in UTF-8"):
        _ = fl.TextDataset(tmp_path / "a.txt")[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("x.npy", r"data must be a tensor, .* got str"),
        (b"x.npy", r"data must be a tensor, .* got bytes"),
        ([(1, "tom"), (2, "kitty")], r"data\[1\] must be a tensor or an ndarray"),
        ([{"name": "tom"}, {"name": "kitty"}], r"data\['name'\] must be a tensor or an ndarray"),
    ],
    ids=str,
)
def test_texts_are_no_tensors(data: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        fl.CachedDataset(data)


def test_a_share_may_be_a_number_of_numpy() -> None:
    assert fl.DataLoaderConfig(max_memory_usage=np.float32(0.5)).max_memory_usage == 0.5  # type: ignore[arg-type]
    assert fl.MemoryMonitor(np.float64(0.5)) is not None


@pytest.mark.parametrize("make", [fl.OPTCache, lambda size: fl.cached(maxsize=size, policy="opt")])
def test_the_optimal_cache_is_for_datasets(make: Callable[[int], Any]) -> None:
    @make(5)
    def load(index: int) -> int:
        return index

    with pytest.raises(TypeError, match=r"OPTCache is for a dataset's __getitem__\(self, index\), not for load"):
        load(1)


LISTING = [fl.ImageDataset, fl.FileDataset, fl.TarDataset, fl.ParquetDataset, fl.MDSDataset]


@pytest.mark.parametrize("dataset", LISTING)
def test_what_is_no_list_of_paths_is_not_taken_for_one(dataset: Any, files: list[str]) -> None:
    for given, match in (
        (dict.fromkeys(files, 0), r"is a dict; give list\("),
        (set(files), r"is a set, .*sorted\("),
        (files[0].encode(), r"got bytes; give os\.fsdecode\("),
    ):
        with pytest.raises(TypeError, match=rf"(data_path|shards) .*{match}"):
            dataset(given)


class Named:
    """A path by its method alone, as pytest's tmpdir is one."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return self.path


def test_anything_that_is_a_path_may_name_a_folder_or_a_file(files: list[str]) -> None:
    folder: Any = Named(str(Path(files[0]).parent))
    assert fl.FileDataset(folder).paths == files
    assert len(fl.ImageDataset(folder)) == 2
    assert fl.FileDataset([Named(files[1])]).paths == [files[1]]  # type: ignore[list-item]


def test_parquet_files_of_the_present_folder_are_asked_for_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"data_path: there is nothing at ''"):
        fl.ParquetDataset("")
    assert len(fl.ParquetDataset(".")) == 1
    with pytest.raises(TypeError, match="columns must be a list of str, got 3"):
        fl.ParquetDataset("a.parquet", columns=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["t*.tar", "t?.tar", "t[01].tar"])
@pytest.mark.parametrize("dataset", [fl.TarDataset, fl.TarStream, fl.ImageDataset])
def test_a_pattern_of_the_shell_gets_a_hint(dataset: Any, pattern: str, tmp_path: Path) -> None:
    for number in range(2):
        write_tar(tmp_path / f"t{number}.tar", [("a.bin", b"a")])
    with pytest.raises(
        FileNotFoundError, match=r"shards: there is no file .*give sorted\(glob\.glob\(.*000\.\.099"
    ):
        dataset(tmp_path / pattern)
    (tmp_path / pattern).symlink_to(tmp_path / "t0.tar")  # a name like any other
    if dataset is fl.TarDataset:
        assert len(dataset(tmp_path / pattern)) == 1


def test_switches_of_tars_and_of_prefetching_are_true_or_false(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "t.tar", [("a.bin", b"a")])
    with pytest.raises(TypeError, match="direct_io must be True or False, got 1"):
        fl.TarDataset(shard, direct_io=1)  # type: ignore[arg-type]
    for value in (1, None, "no"):
        with pytest.raises(TypeError, match=f"direct_io must be True or False, got {value!r}"):
            fl.AsyncPrefetchDataset([1, 2], direct_io=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [[1.5], "abc", [[1, 2], [3, 4]], 3, None, [True]], ids=repr)
def test_an_order_to_load_ahead_is_made_of_ints(order: Any) -> None:
    with pytest.raises(TypeError, match="indices must be a flat list of ints, got"):
        fl.AsyncPrefetchDataset(list(range(5))).ahead(order)


@pytest.mark.parametrize("indices", [3, None], ids=repr)
def test_rows_to_gather_are_listed(indices: Any) -> None:
    with pytest.raises(TypeError, match=f"indices must be a flat list of ints, got {indices}"):
        fl.gather(torch.ones(3, 2), indices)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (torch.tensor(3), "data"),
        ({"a": torch.ones(2), "b": np.array(1)}, r"data\['b'\]"),
        ((torch.tensor(1),), r"data\[0\]"),
    ],
)
def test_a_scalar_has_no_rows_to_keep(data: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is a scalar; give a tensor with one row per sample$"):
        fl.CachedDataset(data)


def test_a_set_is_no_dataset_to_preload() -> None:
    with pytest.raises(TypeError, match=r"data must be a tensor, .*, got set"):
        fl.CachedDataset({1, 2})


def test_labels_are_counted(files: list[str]) -> None:
    with pytest.raises(TypeError, match="labels must be a list or an array"):
        fl.FileDataset(files, labels=torch.tensor(4))  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [fl.packing.cu_seqlens, fl.packing.attention_mask])
def test_documents_of_packed_rows_are_a_tensor_of_ints(make: Any) -> None:
    for given, kind, match in (
        ([0, 0, 1], TypeError, r"got list; give torch\.as_tensor\(document_ids\)"),
        (np.array([0, 0, 1]), TypeError, "got ndarray"),
        (None, TypeError, "got NoneType"),
        (torch.tensor([0.0, 1.0]), TypeError, "got torch.float32"),
        (torch.tensor(3), ValueError, "it is a scalar"),
    ):
        with pytest.raises(kind, match=f"^document_ids must be .*{match}"):
            make(given)
    with pytest.raises(TypeError, match="causal must be True or False"):
        fl.packing.attention_mask(torch.tensor([0]), causal="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (0, 0)], ids=str)
def test_rows_without_tokens_have_no_documents(shape: tuple[int, ...]) -> None:
    assert fl.packing.cu_seqlens(torch.zeros(shape, dtype=torch.int64)).tolist() == [0]


def test_the_loader_comes_before_the_device() -> None:
    loader: Any = torch.utils.data.DataLoader(range(2))  # type: ignore[arg-type]
    for given in (("cpu", loader), (torch.device("cpu"), loader)):
        with pytest.raises(
            TypeError, match=r"loader must be .*cpu.*it comes first: PrefetchLoader\(loader, device\)"
        ):
            fl.PrefetchLoader(*given)


@pytest.mark.parametrize("device", [None, 3.5, True, [1]], ids=repr)
def test_a_device_is_named(device: Any) -> None:
    numbers: Any = [1]
    match = "device must be a str such as 'cuda', or a torch.device, got"
    with pytest.raises(TypeError, match=match):
        fl.PrefetchLoader(numbers, device)
    with pytest.raises(TypeError, match=match):
        fl.EfficientDataLoader(numbers, fl.DataLoaderConfig(num_workers=0)).to(device)


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        ({"normalize": 1}, TypeError, "normalize must be True or False, got 1"),
        ({"channels_last": None}, TypeError, "channels_last must be True or False, got None"),
        ({"hflip": "a"}, TypeError, "hflip must be a number from 0 to 1, got 'a'"),
        ({"mean": 3}, ValueError, "mean and std need three finite numbers each"),
        ({"std": "abc"}, ValueError, "mean and std need three finite numbers each"),
        ({"color_jitter": "abcd"}, ValueError, "color_jitter must be"),
        ({"scale": 3}, ValueError, r"scale must be \(low, high\)"),
        ({"scale": "ab"}, ValueError, r"scale must be \(low, high\)"),
    ],
    ids=str,
)
def test_values_of_a_transform_are_named(arguments: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        fl.transforms.train(8, **arguments)
    if "scale" not in arguments:
        with pytest.raises(kind, match=match):
            fl.transforms.train_small(8, **arguments)


@pytest.mark.parametrize("source", [3, None, b"{}"], ids=repr)
@pytest.mark.parametrize("read", [fl.DataLoaderConfig.from_json, fl.DataLoaderConfig.from_yaml])
def test_a_configuration_is_a_path_or_text(read: Any, source: Any) -> None:
    with pytest.raises(TypeError, match=r"source must be a path or (JSON|YAML) text, got"):
        read(source)


Call = Callable[[Any], Any]


@pytest.mark.parametrize(
    ("call", "value", "error", "message"),
    [
        (lambda value: fl.Cache("1MiB", route=value), "no", TypeError, "cache route must be True or False"),
        (lambda value: fl.Cache("1MiB", share=value), 0, TypeError, "cache share must be True or False, got 0"),
        (lambda value: fl.Cache("1MiB", spill=value), "", ValueError, "cache spill must be a folder, got ''"),
        (lambda value: fl.Cache("1MiB", policy=value), np.zeros(2), ValueError, "cache policy must be one of"),
        (lambda value: fl.Cache("1MiB", keep=value), np.zeros(2), ValueError, "cache keep must be one of"),
        (fl.Cache, np.zeros(2), TypeError, "cache budget must be an int"),
        (fl.LRUCache, np.zeros(2), TypeError, "capacity must be an int, got array"),
        (lambda value: fl.cached(policy=value), [], ValueError, "policy must be one of lru, .*got \\[\\]"),
        (lambda value: fl.PrefetchLoader([1], value), -1, RuntimeError, "device must be .*got -1: .* negative"),
        (lambda value: fl.PrefetchLoader([1], value), "", RuntimeError, "device must be .*got '': .* empty"),
        (lambda value: fl.gather(torch.ones(2), [0], value), 1, TypeError, "out must be a tensor or None"),
        (lambda value: fl.DataLoaderPerformanceMonitor(watch=value), "no", TypeError, "watch must be True"),
        (fl.DataLoaderPerformanceMonitor, 1, TypeError, "memory must be a MemoryMonitor or None, got int"),
        (fl.EfficientDataLoader, None, TypeError, "dataset must be map-style or iterable, got NoneType"),
        (
            lambda value: fl.OPTInit(torch.utils.data.RandomSampler, torch.Generator(), 5, replacement=value),
            "no",
            TypeError,
            "replacement must be True or False, got 'no'",
        ),
    ],
)  # fmt: skip
def test_an_argument_of_no_use_is_named(call: Call, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(value)


@pytest.mark.parametrize("config", [{}, {"batch_size": 2}, 3])
def test_the_configuration_of_a_factory_is_looked_at_before_files(config: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("meow\n")
    factory = fl.DataLoaderFactory
    with pytest.raises(TypeError, match="config must be a DataLoaderConfig, got"):
        factory.create_text_dataloader(tmp_path / "a.txt", config, padding=False)
    for make in (factory.create_image_dataloader, factory.create_hdf5_dataloader):
        with pytest.raises(TypeError, match="config must be a DataLoaderConfig, got"):
            make(tmp_path / "nothing is here", config)


def test_images_are_not_loaded_for_a_device_that_is_none(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fl.HighPerformanceDataset, "__init__", lambda *_: pytest.fail("it reads the files"))
    with pytest.raises(RuntimeError, match=r"^prefetch_device must be one such as 'cuda'"):
        fl.create_dataloader(files, [0, 1], preload=True, prefetch_device="gpu0")
    with pytest.raises(RuntimeError, match=r"^prefetch_device 'cuda.* pass prefetch_device='cpu'|finds \d+ CUDA"):
        fl.create_dataloader(files, [0, 1], preload=True, prefetch_device="cuda:99")


def test_more_images_may_be_kept_than_any_folder_has(files: list[str]) -> None:
    images = fl.ImageDataset(files, labels=[0, 1], image_size=2, cache_size=10**30)
    assert images[1][1] == 1
    assert images.cache_size == 10**30


def test_pack_names_its_own_argument(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "empty" / "a").mkdir(parents=True)
    wrong: list[tuple[Any, type[Exception], str]] = [
        (tmp_path / "none", FileNotFoundError, "there is no folder"),
        (files[0], NotADirectoryError, ".* is a file"),
        (tmp_path / "empty", FileNotFoundError, "no file in class folder"),
        (tmp_path / "empty" / "a", FileNotFoundError, "no file in"),
        ([], ValueError, "is an empty list"),
        (3, TypeError, "must be a folder"),
        (set(files), TypeError, r"is a set.*sorted\(source\)"),
    ]
    for source, error, words in wrong:
        with pytest.raises(error, match=f"^source:? {words}"):
            fl.pack(source, tmp_path / "shards")
