"""Errors that have no built-in type.

::

    Exception
    ├── ForeloadError               all of foreload's own
    │   └── DecodeError             a sample's bytes are damaged (also an OSError, as Pillow's are)
    ├── ValueError, TypeError       an argument makes no sense; the message names it
    ├── IndexError                  a sampler asked for a sample that is not there
    ├── OSError                     a file cannot be read; ``filename`` is its path
    └── RuntimeError                a batch did not come within ``timeout``

An exception that a dataset, transform or collate function raises reaches the consumer as it is, with its
traceback and a note that names the sample.
"""

import os
import sys
import warnings

__all__ = ["DecodeError", "ForeloadError", "warn_user"]

_OURS = os.path.dirname(__file__) + os.sep

# Our loader is one of torch's, which calls it.
_TORCHS = os.path.join("torch", "utils", "data") + os.sep

# Frames of such names `warnings.warn` does not count.
_IMPORTING = "importlib._bootstrap"


class ForeloadError(Exception):
    """The base of foreload's own errors."""


class DecodeError(ForeloadError, OSError):
    """A sample's bytes are damaged, cut short, or of no known format. The message names the file."""


def warn_user(message: str) -> None:
    """Warn, at the line that called foreload, however far in that is noticed.

    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     warn_user("the disk is full")
    >>> str(said[0].message), said[0].category
    ('the disk is full', <class 'UserWarning'>)
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if _IMPORTING not in name:
            if not name.startswith(_OURS) and _TORCHS not in name:
                break
            level += 1
        frame = frame.f_back
    warnings.warn(message, stacklevel=level)
