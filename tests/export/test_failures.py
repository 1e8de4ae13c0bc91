"""Errors that are of one kind are counted together, and those that are not are told apart."""

from __future__ import annotations

import pytest

import foreload as fl
from foreload.batch.failure import SampleError
from foreload.export.document import PublishedLoader
from foreload.export.failures import Failures, generalise


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: sample 7 is broken", "ValueError: sample 12,345 is broken"),
        ("ValueError: shape (3, 224, 224)", "ValueError: shape (1, 500, 375)"),
        ("ValueError: -0.5 is less than 1e-3", "ValueError: 17 is less than 2"),
        ("OSError: truncated (7 bytes not processed)", "OSError: truncated (0 bytes not processed)"),
        ("FileNotFoundError: [Errno 2] none: '/a/b c/1.jpg'", "FileNotFoundError: [Errno 2] none: '/x.png'"),
        ("OSError: cannot read train/n01440764/x_1.JPEG", "OSError: cannot read val/y.JPEG"),
        ("OSError: cannot read x_1.jpg", "OSError: cannot read another.jpg"),
        (r"OSError: C:\data\1.jpg is damaged", r"OSError: C:\data\more\2.jpg is damaged"),
        ("OSError: s3://bucket/a/1.tar: 3 attempts", "OSError: https://host/b.tar: 6 attempts"),
        ("TypeError: cannot collate <A object at 0x7f12ab>", "TypeError: cannot collate <A object at 0x7f99cd>"),
        ("KeyError: 'd41d8cd98f00b204e9800998ecf8427e'", "KeyError: '0cc175b9c0f1b6a831c399e269772661'"),
        ("KeyError: '123e4567-e89b-12d3-a456-426614174000'", "KeyError: 'aaaaaaaa-0000-0000-0000-426614174999'"),
    ],
)  # fmt: skip
def test_numbers_and_paths_are_no_difference(one: str, other: str) -> None:
    assert generalise(one) == generalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: sample 7 is broken", "TypeError: sample 7 is broken"),
        ("ValueError: sample 7 is broken", "ValueError: sample 7 is missing"),
        ("KeyError: 'label'", "KeyError: 'image'"),
        ("FileNotFoundError: '/a/b.jpg'", "PermissionError: '/a/b.jpg'"),
    ],
)
def test_other_errors_are_other_kinds(one: str, other: str) -> None:
    assert generalise(one) != generalise(other)


def error(index: int, message: str) -> SampleError:
    return SampleError(index, None, message, "a traceback", "skip")


def test_a_thousand_errors_are_one_kind_with_its_first_time_its_last_and_an_example() -> None:
    failures = Failures()
    errors = [error(index, f"ValueError: sample {index} is broken") for index in range(600)]
    failures.update(errors, 10.0)
    failures.update(errors, 11.0)  # nothing new
    errors += [error(index, f"ValueError: sample {index} is broken") for index in range(600, 1000)]
    errors.append(error(5, "KeyError: 'label'"))
    failures.update(errors, 20.0)
    broken, key = failures.kinds()
    assert (broken["error"], broken["count"]) == ("ValueError: sample # is broken", 1000)
    assert (broken["first"], broken["last"]) == (10.0, 20.0)
    assert broken["example"]["error"] == "ValueError: sample 999 is broken"
    assert broken["example"]["index"] == 999
    assert (key["count"], key["first"]) == (1, 20.0)


def test_kinds_without_end_are_counted_together() -> None:
    failures = Failures()
    words = [f"{first}{second}" for first in "abcdefghijklmnopqrst" for second in "abcdefghij"]
    failures.update([error(0, f"KeyError: '{word}'") for word in words], 1.0)
    kinds = failures.kinds()
    assert len(kinds) <= 51
    assert sum(kind["count"] for kind in kinds) == len(words)
    assert any(kind["error"] == "errors of other kinds" for kind in kinds)


def test_a_list_that_was_emptied_is_counted_anew() -> None:
    failures = Failures()
    errors = [error(0, "ValueError: x")] * 3
    failures.update(errors, 1.0)
    errors.clear()
    failures.update(errors, 2.0)
    errors.append(error(0, "ValueError: x"))
    failures.update(errors, 3.0)
    (kind,) = failures.kinds()
    assert kind["count"] == 4


def test_a_long_message_is_cut() -> None:
    failures = Failures()
    failures.update([error(0, "ValueError: " + "word " * 100_000)], 1.0)
    (kind,) = failures.kinds()
    assert len(kind["error"]) + len(kind["example"]["error"]) < 5000


def test_a_published_loader_tells_its_kinds_and_not_its_tracebacks() -> None:
    class Broken:
        def __len__(self) -> int:
            return 400

        def __getitem__(self, index: int) -> int:
            if index % 4 == 0:
                raise ValueError(f"sample {index} is broken")
            return index

    loader = fl.DataLoader(Broken(), batch_size=8, on_error="skip", max_errors=1000, num_workers=0)  # type: ignore[arg-type]
    list(loader)
    about = PublishedLoader(1, None).describe(loader)
    (kind,) = about["failures"]
    assert kind["count"] == about["stats"]["errors"] == 100
    assert "traceback" not in kind["example"]
