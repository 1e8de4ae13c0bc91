"""The installed ``foreload`` command, on top of the package so that nothing is imported before Ctrl-C is handled.

``import foreload`` brings torch, which takes a second or more.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback while it is still being imported, too."""
    try:
        from foreload.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
