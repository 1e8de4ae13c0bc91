"""A dataset that holds anything, for fingerprints."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

COUNT = 24


class Held(Dataset[Any]):
    """A dataset that holds anything."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return index
