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

__all__ = ["DecodeError", "ForeloadError"]


class ForeloadError(Exception):
    """The base of foreload's own errors."""


class DecodeError(ForeloadError, OSError):
    """A sample's bytes are damaged, cut short, or of no known format. The message names the file."""
