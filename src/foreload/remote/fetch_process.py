"""The script of the process that fetches; see :mod:`foreload.remote.fetch_server`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType


def main() -> None:
    """Serve the socket whose number is the argument."""
    # The package's own beginning imports torch, which takes seconds.
    package = ModuleType("foreload")
    package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["foreload"] = package
    from foreload.remote.fetch_server import serve

    serve(int(sys.argv[1]))


if __name__ == "__main__":
    main()
