"""Why a run in time misses: what became of every block of every prompt.

Beside new blocks, capacity and policy there is what only time brings about: blocks that another
request is computing just then, copies that fail, requests that never get in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from kvsim.analysis.metrics import num_warmup
from kvsim.collector import paused_collector
from kvsim.config import TIER_NAMES
from kvsim.errors import InvariantError, UserError
from kvsim.hitrate.counting import check_capacity
from kvsim.hitrate.tables import html_table, percent, tidy_frame
from kvsim.hitrate.timed_counting import HitReader, best_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    from kvsim.analysis.records import RequestRecord
    from kvsim.hitrate.timed_counting import Found
    from kvsim.result import ReplayResult
    from kvsim.types import BlockKey, Request, RequestId

HITS: Final = {
    "hit_gpu": "found on the GPU",
    **{f"hit_{name}": f"found in the {name} tier, and copied up" for name in TIER_NAMES[1:]},
    "in_flight": "joined: another request was computing it, or it was on its way up",
    "reload_failed": "found, but not there yet when a copy or a step failed, so it was computed",
}
MISSES: Final = {
    "duplicate": "missed, and computed by another request at the same time",
    "policy": "missed, though the optimum of this capacity would have had it",
    "capacity": "missed, though asked for before: even the optimum would not have had it",
    "cold": "asked for the first time",
    "partial_tail": "a last block that is not full, asked for the first time; in tokens also those"
    " that are in no block",
    "not_admitted": "of requests that never got in: refused, cancelled or failed before",
}
CLASSES: Final = HITS | MISSES
"""What can become of a prompt block -> what it means. Each block is in exactly one."""

AGAIN: Final = {
    "preempted": "computed once more after a preemption",
    "restarted": "computed once more after a copy or a step had failed",
}
"""Blocks beside those of `CLASSES`: of prompts and outputs, by later attempts."""

_COLUMNS: Final = {
    "request_id": "int64", "arrived_at_ns": "int64", "is_warmup": "bool", "class": "string",
    "first_block": "int64", "num_blocks": "int64", "num_tokens": "int64", "clock": "string",
}  # fmt: skip


class Piece(NamedTuple):
    """Consecutive blocks of one prompt that met the same."""

    request: Request
    name: str
    first_block: int
    num_blocks: int
    num_tokens: int


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TimedAttribution:
    """What became of every prompt block of a run.

    Parameters
    ----------
    pieces
        In the order of the trace, root first; all blocks of all prompts.
    num_again
        Blocks that were computed once more, by reason (`AGAIN`).
    capacity
        Blocks that the optimum had.
    num_warmup
        Requests, from the first, that the counts leave out.
    clock, caption
        Of the run.
    """

    pieces: tuple[Piece, ...]
    num_again: Mapping[str, int]
    capacity: int
    num_warmup: int
    clock: str
    caption: str

    @cached_property
    def blocks(self) -> dict[str, int]:
        """Blocks by class, without the warm-up."""
        return self._count("num_blocks")

    @cached_property
    def tokens(self) -> dict[str, int]:
        """Tokens by class, without the warm-up."""
        return self._count("num_tokens")

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each piece of a prompt whose blocks met the same, the warm-up too."""
        rows = (
            (
                piece.request.request_id,
                piece.request.arrived_at,
                piece.request.request_id < self.num_warmup,
                piece.name,
                piece.first_block,
                piece.num_blocks,
                piece.num_tokens,
                self.clock,
            )
            for piece in self.pieces
        )
        return tidy_frame(_COLUMNS, rows, {"classes": dict(CLASSES)})

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table: class, blocks, share, tokens, share; only classes that occur."""
        num_blocks, num_tokens = sum(self.blocks.values()), sum(self.tokens.values())
        return [
            (
                name.replace("_", " "),
                f"{self.blocks[name]:,}",
                percent(_share(self.blocks[name], num_blocks)),
                f"{self.tokens[name]:,}",
                percent(_share(self.tokens[name], num_tokens)),
            )
            for name in CLASSES
            if self.blocks[name] or self.tokens[name]
        ]

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON values."""
        return {
            "blocks": self.blocks,
            "tokens": self.tokens,
            "computed_again_blocks": dict(self.num_again),
            "capacity_blocks": self.capacity,
            "classes": dict(CLASSES),
        }

    def plot(self, *, by: str = "time", ax: Axes | None = None) -> Axes:
        """Draw the share of each class, over the time of arrival or the depth of the block.

        Raises
        ------
        UnknownNameError
            If `by` is neither "time" nor "depth".
        """
        from kvsim.hitrate.timed_plots import plot_classes

        return plot_classes(self, by=by, ax=ax)

    def __repr__(self) -> str:
        most = max(MISSES, key=self.blocks.__getitem__)
        return f"<TimedAttribution {self.caption}; most misses: {most} {self.blocks[most]:,}>"

    def _repr_html_(self) -> str:
        notes = [
            *(f"{name.replace('_', ' ')}: {text}" for name, text in CLASSES.items()),
            *(f"{self.num_again[name]:,} blocks {text}" for name, text in AGAIN.items()),
            self.caption,
        ]
        return html_table("What prompt blocks met", TABLE_HEAD, self.rows(), notes)

    def _count(self, what: str) -> dict[str, int]:
        counts = dict.fromkeys(CLASSES, 0)
        for piece in self.pieces:
            if piece.request.request_id >= self.num_warmup:
                counts[piece.name] += getattr(piece, what)
        return counts


TABLE_HEAD: Final = ("prompt blocks", "blocks", "share", "tokens", "share")


@paused_collector()
def attribute_misses(
    result: ReplayResult, *, capacity_blocks: int | None = None
) -> TimedAttribution:
    """Return what became of each prompt block of a run: a hit, or why not.

    Counted at the first admission of each request, as the hit rates are. The optimum is the
    clairvoyant one ("resident") of the same total capacity, serving one request after another in
    the order of their admissions; so what running requests and outputs take room from counts as
    "policy", too.

    Parameters
    ----------
    result
        A replay that kept its events.
    capacity_blocks
        What the optimum has instead of all tiers together.

    Raises
    ------
    UserError
        If the events were not kept, or keys do not name their whole prefix.
    ConfigError
        If the capacity is no count of blocks.
    """
    if result.events is None:
        raise UserError("the events of this run were not kept: ask for them with events=True")
    tier_blocks = result.config.tier_blocks
    capacity = sum(tier_blocks) if capacity_blocks is None else capacity_blocks
    check_capacity(capacity, name="capacity_blocks")
    reader = HitReader(tier_blocks)
    for event in result.events:
        reader.take(event)
    found = reader.found
    block_size = result.trace.block_size
    requests = [record.request for record in result.records]
    known, best = best_runs(requests, found.order, block_size, capacity)
    pieces: list[Piece] = []
    for request in requests:
        names = list(_classes(request, found, known, best, block_size))
        pieces += _pieces(request, names, block_size)
    attribution = TimedAttribution(
        pieces=tuple(pieces),
        num_again={name: found.num_again[name] for name in AGAIN},
        capacity=capacity,
        num_warmup=num_warmup(result.config.warmup, len(requests)),
        clock=result.clock,
        caption=result.caption,
    )
    _check(attribution, result.records)
    return attribution


def _classes(
    request: Request,
    found: Found,
    known: Mapping[RequestId, int],
    best: Mapping[RequestId, int],
    block_size: int,
) -> Iterator[str]:
    """Yield the class of each block of a prompt, root first."""
    request_id = request.request_id
    keys: Sequence[BlockKey] = request.block_keys
    if request_id not in known:
        yield from ["not_admitted"] * len(keys)
        return
    hits = found.hits[request_id]
    duplicates = found.duplicates.get(request_id, set())
    num_known, num_best = known[request_id], best[request_id]
    num_full = request.num_input_tokens // block_size
    for index, key in enumerate(keys):
        if key in hits:
            yield hits[key]
        elif key in duplicates:
            yield "duplicate"
        elif index >= num_known:
            yield "cold" if index < num_full else "partial_tail"
        else:
            yield "policy" if index < num_best else "capacity"


def _pieces(request: Request, names: Sequence[str], block_size: int) -> Iterator[Piece]:
    """Cut a prompt where the class changes; tokens in no block make a piece without blocks."""
    num_tokens = request.num_input_tokens
    start = 0
    for name, those in groupby(names):
        end = start + len(list(those))
        tokens = min(end * block_size, num_tokens) - min(start * block_size, num_tokens)
        yield Piece(request, name, start, end - start, tokens)
        start = end
    rest = num_tokens - min(start * block_size, num_tokens)
    if rest:
        name = "not_admitted" if "not_admitted" in names else "partial_tail"
        yield Piece(request, name, start, 0, rest)


def _check(attribution: TimedAttribution, records: Sequence[RequestRecord]) -> None:
    """Raise `InvariantError` unless the classes add up to what the records say."""
    measured = records[attribution.num_warmup :]
    total = sum(len(record.request.block_keys) for record in measured)
    hits = sum(sum(record.num_hit_blocks_by_tier) for record in measured)
    counts = Counter(attribution.blocks)
    seen, seen_hits = sum(counts.values()), sum(counts[name] for name in HITS)
    tokens = sum(record.request.num_input_tokens for record in measured)
    if (seen, seen_hits, sum(attribution.tokens.values())) != (total, hits, tokens):
        raise InvariantError(
            f"{seen} blocks, {seen_hits} of them hits, are attributed; the records have {total},"
            f" {hits} of them hits, and {tokens} tokens"
        )


def _share(count: int, total: int) -> float:
    return count / total if total else 0.0
