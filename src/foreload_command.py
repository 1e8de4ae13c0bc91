"""The installed ``foreload`` command, beside the package: Ctrl-C is prepared for before anything is imported."""

import signal

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    handler = signal.getsignal(signal.SIGINT)
    is_default = handler is signal.default_int_handler  # a job in the background ignores Ctrl-C
    if is_default:
        # The process just ends: a KeyboardInterrupt within torch's import is at times swallowed, with half of it
        # imported, or ends in abort().
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from foreload.cli.main import main as run

    if is_default:
        signal.signal(signal.SIGINT, handler)
    run()
