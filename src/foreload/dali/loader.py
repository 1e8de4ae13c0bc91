"""A loader whose batches a DALI pipeline makes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foreload.checks import check_int
from foreload.dali.epoch import DALIEpoch
from foreload.dali.feed import FedPipeline
from foreload.dali.samples import EncodedSamples, as_list
from foreload.device.ahead import LoopPosition
from foreload.loader import DataLoader

__all__ = ["DALILoader"]

_OWN = ("collate_fn", "device", "device_transform", "device_depth", "pin_memory", "dataset")


class DALILoader:
    """Runs a DALI pipeline over a dataset, in the order and under the contract of :class:`foreload.DataLoader`.

    Files are read by foreload, in its order: shuffled by ``seed=``, shared between ranks, resumed. They take the
    place of DALI's reader: the pipeline gets them from an ``external_source``, and decodes and augments them. Its
    last batch is as long as it is; ``drop_last`` leaves it out. Each iteration is an epoch, without ``reset()``.

    The wrapped loader's attributes and methods (``set_epoch``, ``stats``, ``report``, ``errors``, ...) are
    available here too; the time that the loop spends on DALI is shown as ``device``. ``state_dict()`` is that of
    the batch that the loop has, not of those that DALI has begun. What operators of DALI draw at random is not
    part of it: numbers that a dataset draws are, under ``seed=``, and may be given to the pipeline as a field.

    Args:
        dataset: a :class:`foreload.ImageDataset`, of which the pipeline gets ``(bytes of the file, target)``,
            without the transform; or any map-style dataset with samples of bytes, numbers, arrays and tensors, or
            tuples or dicts of them (in their order), such as :class:`foreload.FileDataset`.
        pipeline: a function under DALI's ``pipeline_def``, which is called with ``source``, to be given to
            ``fn.external_source(source, num_outputs=..., batch=True)`` with one output per field (for a single
            field, without ``num_outputs``); and with ``batch_size`` and ``prefetch_queue_depth``.
        batch_size: samples per batch.
        outputs: names for the pipeline's outputs; batches are then dicts of tensors, else lists of tensors. An
            output whose samples differ in shape is a list of tensors.
        pipeline_options: more arguments of ``pipeline``, such as ``{"num_threads": 4, "device_id": 0}``.
        depth: the number of batches that DALI makes ahead.
        **options: as for :class:`foreload.DataLoader`: ``shuffle``, ``seed``, ``num_workers``, ``drop_last``,
            ``cache``, ``distributed``, ``group``, ... ``on_error`` is for samples that the pipeline fails with,
            too: these are found by running the samples of their batch one by one.

    Raises:
        TypeError: an option is DALI's business, the dataset has no indices, or ``pipeline`` cannot be called.
        ValueError: an argument makes no sense.

    Attributes:
        loader: the :class:`foreload.DataLoader` of the samples.

    >>> DALILoader([(b"abc", 0)], print, device="cuda")
    Traceback (most recent call last):
    TypeError: device is up to the pipeline: leave it out, and pass pipeline_options={"device_id": 0} ...
    """

    def __init__(
        self,
        dataset: Any,
        pipeline: Callable[..., Any],
        batch_size: int = 1,
        *,
        outputs: Sequence[str] | None = None,
        pipeline_options: Mapping[str, Any] | None = None,
        depth: int = 2,
        **options: Any,
    ) -> None:
        for name in _OWN:
            if name in options:
                raise TypeError(
                    f'{name} is up to the pipeline: leave it out, and pass pipeline_options={{"device_id": 0}} '
                    "for a pipeline on a GPU"
                )
        if not callable(pipeline):
            raise TypeError(
                f"pipeline must be a function under DALI's pipeline_def, got {type(pipeline).__name__}"
            )
        self.outputs = None if outputs is None else tuple(outputs)
        self.depth = check_int("depth", depth, least=1)
        self._make = pipeline
        self._options = dict(pipeline_options or {})
        self._samples = EncodedSamples(dataset)
        self.loader: DataLoader[Any] = DataLoader(
            self._samples, check_int("batch_size", batch_size, least=1), collate_fn=as_list, **options
        )
        self._open()

    def _open(self) -> None:
        make, size, depth, options = self._make, self.loader.batch_size, self.depth, self._options
        self._pipeline = FedPipeline(
            lambda source: make(source, batch_size=size, prefetch_queue_depth=depth, **options)
        )
        self._epoch: weakref.ref[DALIEpoch] | None = None
        self._place: LoopPosition | None = None

    def __iter__(self) -> DALIEpoch:
        """Begin an epoch; one that is under way ends, since there is one pipeline."""
        self._end_epoch()
        loader = self.loader
        indices = iter(loader)
        epoch = DALIEpoch(
            indices,
            self._pipeline,
            loader.state_dict,
            self._present,
            loader.on_error,
            indices.errors,
            self._samples.path,
        )
        self._epoch, self._place = weakref.ref(epoch), epoch.place
        return epoch

    def _present(self, found: list[Any]) -> Any:
        if self.outputs is None:
            return found
        if len(self.outputs) != len(found):
            raise ValueError(
                f"outputs has {len(self.outputs)} names, but the pipeline returns {len(found)} outputs; "
                "give one name for each output"
            )
        return dict(zip(self.outputs, found, strict=True))

    def _end_epoch(self) -> None:
        epoch, self._epoch = None if self._epoch is None else self._epoch(), None
        if epoch is not None:
            epoch.close()

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as of the batch that was delivered last."""
        ahead = None if self._place is None else self._place.state
        state: dict[str, Any] = self.loader.state_dict() if ahead is None else dict(ahead)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next epoch go on where a state was taken."""
        self._end_epoch()
        self._place = None
        self.loader.load_state_dict(state)

    def close(self) -> None:
        """End the epoch under way, and let go of the pipeline."""
        self._end_epoch()
        self._pipeline.give_up()
        self.loader.close()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped loader."""
        if name.startswith("__") or "loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the arguments and the loader, without what is open."""
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_pipeline", "_epoch", "_place")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.__dict__.update(state)
        self._open()
