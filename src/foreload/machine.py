"""What this machine grants the process."""

import os


def granted_cores() -> int:
    """Count the cores."""
    return len(os.sched_getaffinity(0))
