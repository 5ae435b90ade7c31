"""What a comparison needs of a run: its frames and what it was, from memory or from a folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from kvsim.analysis.frames import REQUEST_COLUMNS, TRANSFER_COLUMNS
from kvsim.errors import UserError
from kvsim.result import ReplayResult
from kvsim.trace.paths import checked_path, os_problem

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    import pandas as pd

_FACTS: Final = ("clock", "config", "trace", "provenance", "warmup")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedRun:
    """A finished replay as its files have it.

    Parameters
    ----------
    label
        What the run is called where both are named.
    facts
        The summary of the result (`run.json`).
    requests, transfers
        Its frames.
    """

    label: str
    facts: Mapping[str, object]
    requests: pd.DataFrame
    transfers: pd.DataFrame

    def fact(self, group: str, name: str) -> object:
        """Return a value of the summary; None if it has none of this name."""
        table = self.facts.get(group)
        return cast("Mapping[str, object]", table).get(name) if isinstance(table, dict) else None


def as_run(run: ReplayResult | str | PathLike[str], *, label: str) -> SavedRun:
    """Return a result, or the folder that one was saved to, as what can be compared.

    Raises
    ------
    UserError
        If there is no such folder, or it is not that of a result.
    """
    if isinstance(run, ReplayResult):
        return SavedRun(
            label=label, facts=run.summary(), requests=run.requests, transfers=run.transfers
        )
    return load_run(run)


def load_run(path: str | PathLike[str]) -> SavedRun:
    """Read what `result.save` or `kvsim replay --out` has written.

    Raises
    ------
    UserError
        If a file is missing, cannot be read, or is not what was saved there.
    """
    folder = checked_path(Path(path).absolute())
    if not folder.is_dir():
        raise UserError(f"{path}: no such folder; name one that kvsim replay --out has written")
    facts = _facts(folder / "run.json", shown=f"{path}")
    return SavedRun(
        label=folder.name,
        facts=facts,
        requests=_frame(folder / "requests.parquet", REQUEST_COLUMNS, shown=f"{path}"),
        transfers=_frame(folder / "transfers.parquet", TRANSFER_COLUMNS, shown=f"{path}"),
    )


def _facts(file: Path, *, shown: str) -> dict[str, object]:
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{shown}/{file.name}: {os_problem(error)}") from error
    except ValueError as error:
        raise UserError(f"{shown}/{file.name}: not what kvsim saves there: {error}") from error
    if not isinstance(facts, dict) or any(name not in facts for name in _FACTS):
        raise UserError(
            f"{shown}/{file.name}: not the summary of a replay, which has {', '.join(_FACTS)}"
        )
    return facts


def _frame(file: Path, columns: Mapping[str, str], *, shown: str) -> pd.DataFrame:
    import pandas as pd

    try:
        frame = pd.read_parquet(file)
    except OSError as error:
        raise UserError(f"{shown}/{file.name}: {os_problem(error)}") from error
    except ValueError as error:  # pyarrow's errors are of this kind
        text = " ".join(str(error).split())
        raise UserError(f"{shown}/{file.name}: not what kvsim saves there: {text}") from error
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise UserError(
            f"{shown}/{file.name}: no column {missing[0]!r}: saved by another release; replay again"
        )
    return frame
