"""A simulated device."""

from __future__ import annotations

import pytest

from tests.device.loops import Use
from tests.fake_device import FakeDevice


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Put a device in the place of the CPU."""

    def put(device: FakeDevice | None = None) -> FakeDevice:
        device = FakeDevice() if device is None else device
        for module in ("foreload.loader", "foreload.device.prefetch"):
            monkeypatch.setattr(f"{module}.side_stream", lambda where, *, non_blocking=True: device)
        return device

    return put
