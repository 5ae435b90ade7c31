"""The folder of a sweep: one small file a finished cell, and the table made of them.

A cell's file is Parquet: one column, the hit tokens of each request, and the rest as JSON in the
metadata of the file. Nothing in the folder is a pickle.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq

from kvsim.errors import UserError
from kvsim.saving import check_folder, new_files
from kvsim.sweeping.cells import CellResult, CellStatus, Figure
from kvsim.trace.paths import os_problem

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike
    from pathlib import Path

_META: Final = b"kvsim"
_COLUMN: Final = "num_hit_tokens"
_FORMAT: Final = 1
"""Version of the files of cells; one of another version is run again."""


class SweepFolder:
    """The files of a sweep.

    Raises
    ------
    UserError
        If nothing can be saved there.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = check_folder(path)
        self._cells = self.path / "cells"

    def finished(self, digests: Iterable[str]) -> dict[str, CellResult]:
        """Return the cells of these digests that are done; one that failed is tried again.

        A file that cannot be read, or is not about the cell it is named after, counts as none.

        Raises
        ------
        UserError
            If the folder or a file in it may not be read.
        """
        try:
            found = {file.stem: file for file in self._cells.glob("*.parquet")}
            results = (_read(found[digest]) for digest in digests if digest in found)
            return {each.digest: each for each in results if each is not None}
        except OSError as error:
            raise UserError(f"{self._cells}: {os_problem(error)}") from error

    def add(self, result: CellResult) -> None:
        """Write the file of a cell, whole or not at all.

        Raises
        ------
        UserError
            If it cannot be written.
        """
        name = f"{result.digest}.parquet"
        with new_files(self._cells, last=name) as folder:
            _write(folder / name, result)


def _write(file: Path, result: CellResult) -> None:
    about = {
        "digest": result.digest,
        "figures": result.figures,
        "format": _FORMAT,
        "message": result.message,
        "num_warmup": result.num_warmup,
        "provenance": dict(result.provenance),
        "status": result.status.value,
    }
    table = pa.table({_COLUMN: pa.array(result.hit_tokens, type=pa.int64())})
    text = json.dumps(about, sort_keys=True, allow_nan=False)
    pq.write_table(table.replace_schema_metadata({_META: text.encode()}), file, compression="zstd")


def _read(file: Path) -> CellResult | None:
    """Return a cell that is done; None if it failed or the file is not one of this format."""
    try:
        table = pq.read_table(file)
        about = json.loads(table.schema.metadata[_META])
        if (about["format"], about["digest"]) != (_FORMAT, file.stem):
            return None
        if about["status"] != CellStatus.DONE:
            return None
        return CellResult(
            digest=about["digest"],
            status=CellStatus.DONE,
            figures=tuple(Figure(*figure) for figure in about["figures"]),
            hit_tokens=np.asarray(table[_COLUMN].to_numpy(), dtype=np.int64),
            num_warmup=about["num_warmup"],
            provenance=about["provenance"],
        )
    except (pa.ArrowException, KeyError, TypeError, ValueError):
        return None
