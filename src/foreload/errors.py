"""The errors that foreload raises, and its warnings.

::

    Exception
    ├── ForeloadError               the base of foreload's own
    │   └── DecodeError             a sample's bytes are damaged (also an OSError, like Pillow's)
    ├── ValueError, TypeError       an argument makes no sense; the message names it
    ├── IndexError                  a sampler asked for a sample that does not exist
    ├── OSError                     a file cannot be read; ``filename`` is its path
    ├── MemoryError                 what ``LoadingMode.EAGER`` is to keep does not fit
    ├── ImportError                 an optional package is missing; the message names it
    └── RuntimeError                an epoch cannot go on: no batch came within ``timeout``, more samples failed
                                    than ``max_errors``, more workers died than ``max_restarts``, or it has ended

An exception from a dataset, transform or collate function reaches the loop unchanged, with its traceback and a
note that names the sample.
"""

import os
import sys
import warnings

__all__ = ["DecodeError", "ForeloadError"]

_OURS = os.path.dirname(__file__) + os.sep

# The loader derives from torch's, whose code may be between it and the user's.
_TORCHS = os.path.join("torch", "utils", "data") + os.sep

# `warnings.warn` does not count frames of these names.
_IMPORTING = "importlib._bootstrap"


class ForeloadError(Exception):
    """The base of foreload's own errors.

    >>> issubclass(DecodeError, ForeloadError)
    True
    """


class DecodeError(ForeloadError, OSError):
    """The bytes of a sample are damaged, cut short, or of an unknown format. The message names the file.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "cut.jpg")
    >>> with open(path, "wb") as file: _ = file.write(b"not a JPEG")
    >>> import foreload
    >>> images = foreload.ImageDataset([path], labels=[0])
    >>> try: images[0]
    ... except DecodeError as error: print("cut.jpg" in str(error))
    True
    """


def warn_user(message: str) -> None:
    """Warn at the line of the user's code that called foreload, however deep inside foreload this is called.

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
