"""Write a trace to a file in one of kvsim's own formats, completely or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kvsim.errors import TraceError
from kvsim.trace import kvsim_jsonl
from kvsim.trace.compression import compressed
from kvsim.trace.paths import checked_path, os_problem

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

    from kvsim.trace.base import Trace

_PARQUET = ".parquet"
_COMPRESSED = (".gz", ".zst")


def write(trace: Trace, path: str | PathLike[str]) -> None:
    """Write `trace`: to Parquet if the name ends in .parquet, else to kvsim's JSON Lines.

    A name that ends in .gz or .zst is compressed. Equal traces give equal bytes. `next_use_at` is
    written to neither, `name` and `repairs` to Parquet alone; bytes as keys become hex digits in
    JSON Lines.

    Raises
    ------
    TraceError
        If the file cannot be written, or a key or time has no place in the format.
    """
    file = checked_path(path)
    suffix = file.suffix.lower()
    if suffix == _PARQUET:
        from kvsim.trace import kvsim_parquet  # pyarrow is slow to import

        content = kvsim_parquet.encoded(trace, file)
    else:
        content = kvsim_jsonl.encoded(trace, file)
        if suffix in _COMPRESSED:
            content = compressed(content, suffix)
    write_whole(file, content)


def write_whole(file: Path, content: bytes) -> None:
    """Write a file under another name and rename it, so that nobody sees half of it.

    Raises
    ------
    TraceError
        If it cannot be written.
    """
    unfinished = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        try:
            unfinished.write_bytes(content)
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise TraceError(os_problem(error, doing="written"), path=file) from error
