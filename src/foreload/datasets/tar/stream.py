"""Samples in tar shards without random access, as a stream."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, SupportsIndex

from foreload import _native
from foreload.checks import check_callable, check_state_int
from foreload.datasets.tar.files import is_stored, list_stored, list_streams, name_of, sample_runs
from foreload.order.shuffle import ReaderSpec, ShuffledStream, Source, order_of
from foreload.protocol import UserCode
from foreload.remote.fetch import Fetch
from foreload.remote.url import warn_of_no_urls

__all__ = ["TarStream"]


class TarStream(ShuffledStream, UserCode):
    """Samples in tar shards (WebDataset's layout) that are read from the beginning to the end.

    For what :class:`foreload.TarDataset` cannot read in any order: compressed shards (gzip, bzip2, xz, and zstd
    with the package zstandard), standard input, pipes, web servers that do not know ranges. Samples are the same
    dicts: ``"__key__"``, and each member's bytes by its field.

    The order of the shards is random; samples go through a buffer, from which a random one is drawn each time.
    Shards are dealt among ranks and workers, so there should be as many, and they should have about as many
    samples each. The order is a pure function of (seed, epoch) and of the number of ranks and workers.

    A shard is read up to its end marker, as tarfile does; a warning says where more follows, as in concatenated
    tars. A download may take any time, but a server that is silent is given up after 60 to 75 seconds.

    The iterator has ``state_dict`` and ``load_state_dict``: a :class:`foreload.DataLoader` goes on in the middle
    of an epoch with exactly the samples that would have come, for the same number of workers and ranks. For that,
    the current shard is read again up to that point, and every earlier one of which samples were in the buffer. As
    with torch's ``DistributedSampler``, call :meth:`set_epoch` before each epoch, and before one goes on.

    Args:
        shards: a folder, a file, ``"train-{000..099}.tar.gz"``, a URL (``http://``, ``https://``; ``s3://``,
            ``gs://``, ``az://`` with obstore, which stand for all below where they end with ``/``), ``"-"`` for
            standard input, a function that opens a binary file, or several of these.
        transform: called with each dict when it leaves the buffer.
        buffer: how many samples each worker holds.
        seed: of the order; as for :class:`foreload.Stream`.
        storage: options of object storage, as :class:`foreload.remote.fetch.Fetch` takes them.
        shuffle: if not, shards and samples come as they are.
        num_replicas, rank: as for :class:`foreload.Stream`.

    Raises:
        FileNotFoundError, ValueError, TypeError: an argument is invalid; the message names it.

    Iterating raises OSError where a shard cannot be read, and :class:`foreload.errors.DecodeError` (an OSError
    too) where it is damaged or cut short; the message names the shard and the member. A loop that goes on after
    that gets the next shard.

    >>> import io, tarfile, tempfile
    >>> shard = Path(tempfile.mkdtemp()) / "train.tar.gz"
    >>> with tarfile.open(shard, "w:gz") as tar:
    ...     for name, content in (("0001.txt", b"hello"), ("0001.cls", b"7")):
    ...         member = tarfile.TarInfo(name); member.size = len(content)
    ...         tar.addfile(member, io.BytesIO(content))
    >>> list(TarStream(shard))
    [{'__key__': '0001', 'txt': b'hello', 'cls': b'7'}]
    """

    def __init__(
        self,
        shards: str | Path | Callable[[], BinaryIO] | Sequence[str | Path | Callable[[], BinaryIO]],
        transform: Callable[[dict[str, Any]], Any] | None = None,
        *,
        buffer: SupportsIndex = 1000,
        seed: SupportsIndex | None = None,
        storage: dict[str, Any] | None = None,
        shuffle: bool = True,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        check_callable("transform", transform)
        super().__init__(buffer, seed, shuffle, num_replicas, rank)
        self.shards = list_streams(shards)
        self.transform = transform
        self._fetch = Fetch(storage) if any(map(is_stored, self.shards)) else None
        if self._fetch is None:
            warn_of_no_urls(storage=storage)
        else:
            self.shards = list_stored(self._fetch, self.shards)

    def user_code(self) -> Iterable[Any]:
        """Return the transform, and functions that open shards; see :class:`foreload.protocol.UserCode`."""
        return self.transform, [shard for shard in self.shards if callable(shard)]

    def _open(self, reading: ReaderSpec) -> Source:
        readers = reading.ranks * reading.workers
        if reading.worker == 0 and readers > len(self.shards):
            warnings.warn(
                f"there are only {len(self.shards)} shards for {readers} readers ({reading.workers} workers on "
                f"each of {reading.ranks} ranks): {readers - len(self.shards)} of them have nothing to read; "
                "make more and smaller shards, or use fewer workers",
                stacklevel=4,
            )
        return _Shards(self, reading)

    def _runs(self, shard: int) -> Iterator[list[dict[str, Any]]]:
        return sample_runs(self.shards[shard], name_of(self.shards[shard], shard), self._fetch)


class _Shards:
    """One reader's part: some of the shards, one after the other."""

    def __init__(self, stream: TarStream, reading: ReaderSpec) -> None:
        self._stream = stream
        # Dealt to ranks before workers: ranks then differ by one shard at most.
        first, step = reading.rank + reading.ranks * reading.worker, reading.ranks * reading.workers
        self._own: list[int] = order_of(reading, len(stream.shards))[first::step].tolist()
        self.finishes = stream.transform is not None
        self.names: Callable[[Sequence[int]], list[Any]] = functools.partial(_names, len(stream.shards))
        self._turn = 0
        self._given = 0  # samples of the current shard
        self._sums = [0]  # checksums of their keys, fields and sizes: before the latest run, and after each of it
        self._runs: Iterator[list[dict[str, Any]]] | None = None
        self._rest: list[dict[str, Any]] = []  # of a run that was read when the state was restored

    def read(self) -> tuple[Sequence[int], list[dict[str, Any]]]:
        """Read the next samples of the current shard, or the first ones of the next."""
        while self._turn < len(self._own):
            shard = self._own[self._turn]
            try:
                if self._runs is None:
                    self._runs = self._stream._runs(shard)
                run = self._rest or next(self._runs)
                sums = _native.sample_sums(run, self._sums[-1])
            except Exception as error:
                self._turn, self._given, self._sums, self._runs = self._turn + 1, 0, [0], None
                if isinstance(error, StopIteration):
                    continue
                raise
            first, self._rest = self._given, []
            self._given += len(run)
            self._sums = [self._sums[-1], *sums]
            count = len(self._stream.shards)
            return range(first * count + shard, self._given * count, count), run
        return (), []

    def finish(self, number: int, sample: dict[str, Any]) -> Any:
        """Transform a sample."""
        if self._stream.transform is None:
            return sample
        try:
            return self._stream.transform(sample)
        except Exception as error:
            own = number % len(self._stream.shards)
            shard = name_of(self._stream.shards[own], own)
            error.add_note(f"foreload: while loading sample {sample['__key__']!r} of {shard}")
            raise

    def state(self, left: int) -> list[int]:
        """Return the shards done, the samples read of the current one, the number of shards, and a checksum."""
        return [self._turn, self._given - left, len(self._stream.shards), self._sums[len(self._sums) - 1 - left]]

    def restore(self, state: list[int], names: list[Any]) -> tuple[list[int], list[Any]]:
        """Resume there; each shard is opened once."""
        if not isinstance(state, (list, tuple)) or len(state) not in (3, 4):
            raise ValueError(f"the state's 'at' must be [turn, given, shards, sum], got {repr(state)[:100]}")
        turn, given, shards, *sums = state  # earlier releases had no checksum
        if shards != len(self._stream.shards):
            raise ValueError(
                f"the state is of a stream of {shards} shards, but this one has {len(self._stream.shards)}"
            )
        check_state_int("at", turn, 0, len(self._own) + 1)
        check_state_int("at", given, 0, 1 << 63)
        for name in names:
            if not isinstance(name, (list, tuple)) or len(name) != 2:
                raise ValueError(f"the state's 'held' must be a list of [shard, number], got {repr(name)[:100]}")
            check_state_int("held", name[0], 0, shards)
            check_state_int("held", name[1], 0, 1 << 63)
        wanted = {(shard, number) for shard, number in names}
        found: dict[tuple[int, int], Any] = {}
        present = self._own[turn] if turn < len(self._own) else None
        for shard in sorted({shard for shard, _ in wanted} - {present}):
            self._again(shard, 1 + max(number for own, number in wanted if own == shard), wanted, found)
        self._turn, self._given, self._sums = turn, given, [0]
        if present is not None and given:
            self._runs, self._rest, sum_ = self._again(present, given, wanted, found)
            if sums and sums[0] != sum_:
                raise ValueError(
                    f"{name_of(self._stream.shards[present], present)} has other samples than when the state was "
                    "taken; it is another file"
                )
            self._sums = [sum_]
        return [number * shards + shard for shard, number in names], [
            found[shard, number] for shard, number in names
        ]

    def _again(
        self, shard: int, count: int, wanted: set[tuple[int, int]], found: dict[tuple[int, int], Any]
    ) -> tuple[Iterator[list[dict[str, Any]]], list[dict[str, Any]], int]:
        """Read ``count`` samples of a shard, and collect those that are wanted.

        Returns:
            What reads on, what it has read too much, and the checksum of the ``count`` samples.
        """
        runs = self._stream._runs(shard)
        number = sum_ = 0
        rest: list[dict[str, Any]] = []
        while number < count:
            if not (run := next(runs, [])):
                raise ValueError(
                    f"{name_of(self._stream.shards[shard], shard)} has {number} samples, but had more when the "
                    "state was taken; it is another file"
                )
            used, rest = run[: count - number], run[count - number :]
            sum_ = _native.sample_sums(used, sum_)[-1]
            found |= {(shard, at): sample for at, sample in enumerate(used, number) if (shard, at) in wanted}
            number += len(used)
        return runs, rest, sum_


def _names(shards: int, numbers: Sequence[int]) -> list[list[int]]:
    """Return the shard of each sample, and its number there."""
    return [[number % shards, number // shards] for number in numbers]
