"""Parquet files, opened by pyarrow."""

from __future__ import annotations

import os
from typing import Any

from foreload.checks import check_regular_file
from foreload.errors import DecodeError

__all__ = ["load_pyarrow", "open_parquet"]


def load_pyarrow() -> Any:
    """Import pyarrow with its Parquet module.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install pyarrow") from error
    return pyarrow


def open_parquet(path: str, metadata: Any = None) -> Any:
    """Open a file as ``pyarrow.parquet.ParquetFile``; with its ``metadata`` that takes some 30 us.

    Pages that have a checksum (``write_page_checksum=True``) are compared with it when they are read.

    Raises:
        DecodeError: it is not a Parquet file, or is cut short.
        OSError: it cannot be read.
    """
    pa = load_pyarrow()
    check_regular_file(path)
    try:
        file = pa.parquet.ParquetFile(path, metadata=metadata, page_checksum_verification=True)
        if metadata is None:
            _ = file.schema_arrow  # it may be damaged too
        return file
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), path) from error
        raise DecodeError(f"{path}: not a Parquet file, or cut short or damaged: {error}") from error
