"""One cell of a sweep: what it is, what identifies it, how it is run, and what is kept of it."""

from __future__ import annotations

import json
import traceback
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kvsim.analysis.metrics import TIER_NAMES
from kvsim.api import replay
from kvsim.errors import UserError
from kvsim.sweeping.config import SAMPLE_PREFIX
from kvsim.trace import load, load_sample
from kvsim.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvsim.replay_config import JsonValue, ReplayConfig
    from kvsim.result import ReplayResult
    from kvsim.trace import Trace

_KEPT_TRACES: Final = 2
"""Traces that a process keeps. Cells come trace by trace, so one is enough but at the border."""

_PACKAGE: Final = Path(__file__).resolve().parents[1]


class CellStatus(StrEnum):
    """How a cell ended."""

    DONE = "done"
    FAILED = "failed"


class TraceView(NamedTuple):
    """A trace as a cell reads it: where it is, which bytes it must have, and how it is read."""

    location: str
    sha256: str | None
    format: str | None
    partial: str | None
    limit: int | None
    block_size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One replay of a sweep.

    Parameters
    ----------
    digest
        SHA-256 of all that its figures depend on, in hexadecimal digits; see `cell_digest`.
    trace, variant
        What the sweep calls its trace and its settings.
    view
        What is read.
    config
        The settings as they were given: they become final when the trace is read.
    resolved
        The same with nothing left open; as given if they do not fit the trace.
    """

    digest: str
    trace: str
    variant: str
    view: TraceView
    config: ReplayConfig
    resolved: ReplayConfig


class Figure(NamedTuple):
    """One figure of a cell: `value` in `unit`; `hits / total` where it is a hit rate.

    `tier` is "gpu", "cpu" or "all" where the figure is of tiers, else None.
    """

    name: str
    unit: str
    tier: str | None
    hits: int | None
    total: int | None
    value: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellResult:
    """What is kept of a cell.

    Parameters
    ----------
    message
        Why there are no figures; None if there are.
    hit_tokens
        Tokens of the leading run of each request, in the order of the trace.
    num_warmup
        How many requests, from the first, the figures leave out.
    provenance
        Commit, Python's version, seconds: the figures do not depend on them.
    """

    digest: str
    status: CellStatus
    message: str | None = None
    figures: tuple[Figure, ...] = ()
    hit_tokens: np.ndarray
    num_warmup: int = 0
    provenance: Mapping[str, JsonValue]


def cell_digest(
    *, trace_sha256: str | None, resolved: ReplayConfig, policy_sha256: str | None
) -> str:
    """Return what identifies a cell: equal digests mean equal figures.

    It is the SHA-256 of the trace's own SHA-256, of all settings with nothing left open (policy
    and seed among them), of the source file of a policy that is named `module:Class`, and of
    kvsim's version, as JSON with sorted keys. The git commit is not in it: a cell need not be
    repeated because a comment has changed.
    """
    parts = {
        "kvsim": __version__,
        "policy_sha256": policy_sha256,
        "settings": resolved.to_dict(),
        "trace_sha256": trace_sha256,
    }
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=_KEPT_TRACES)
def read_view(view: TraceView) -> Trace:
    """Return the trace; a process that asks again soon does not read it again.

    Raises
    ------
    UserError
        If it cannot be read, or is not what it was when the sweep began.
    """
    if view.location.startswith(SAMPLE_PREFIX):
        trace = load_sample(view.location.removeprefix(SAMPLE_PREFIX))
    else:
        trace = load(
            view.location,
            format=view.format,
            partial=view.partial,
            limit=view.limit,
            block_size=view.block_size,
        )
    if view.sha256 is not None and trace.sha256 != view.sha256:
        raise UserError(
            f"{view.location}: its SHA-256 is {trace.sha256}, and was {view.sha256} when the sweep"
            " began: start it again with the file as it is now"
        )
    return trace


def run_cell(cell: Cell) -> CellResult:
    """Replay one cell; a replay that cannot be is a result too, and not an exception."""
    try:
        result = replay(read_view(cell.view), config=cell.config)
    except UserError as error:
        return _failed(cell, str(error))
    # A policy may be anybody's code, with any fault: it costs its own cells and no others.
    except Exception as error:
        return _failed(cell, f"{type(error).__name__}: {error} ({_origin(error)})")
    return CellResult(
        digest=cell.digest,
        status=CellStatus.DONE,
        figures=tuple(_figures(result)),
        hit_tokens=result.requests["num_hit_tokens"].to_numpy(dtype=np.int64),
        num_warmup=int(result.requests["is_warmup"].sum()),
        provenance=asdict(result.provenance),
    )


def _failed(cell: Cell, message: str) -> CellResult:
    return CellResult(
        digest=cell.digest,
        status=CellStatus.FAILED,
        message=" ".join(message.split()),
        hit_tokens=np.zeros(0, dtype=np.int64),
        provenance={"kvsim_version": __version__},
    )


def _origin(error: Exception) -> str:
    """Return the file and line that an exception comes from, relative to kvsim if it is there."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    file = Path(frame.filename)
    is_ours = file.is_relative_to(_PACKAGE)
    return f"{file.relative_to(_PACKAGE.parent) if is_ours else file}:{frame.lineno}"


def _figures(result: ReplayResult) -> Iterator[Figure]:
    by_tier = {"all": result.hits}
    by_tier |= {name: result.tiers[name]["hits"] for name in TIER_NAMES}
    for definition in result.hits:
        for tier, hits in by_tier.items():
            each = hits[definition]
            yield Figure(definition, "share", tier, each["hits"], each["total"], each["rate"])
    for end, count in result.num_requests.items():
        yield Figure(f"requests_{end}", "count", None, None, None, count)
    yield Figure("preemptions", "count", None, None, None, result.num_preemptions)
    yield Figure("duplicate_blocks", "count", None, None, None, result.num_duplicate_blocks)
    for name, value in (result.ttft_ms or {}).items():
        yield Figure(f"ttft_{name}", "ms", None, None, None, value)
    for direction, swap in (result.swaps or {}).items():
        for name, unit in (("blocks", "count"), ("bytes", "bytes"), ("busy_ms", "ms")):
            label = f"{direction}_{name.removesuffix('_ms')}"
            yield Figure(label, unit, None, None, None, swap[name])
