"""What is in a trace: lengths, sharing, reuse, sessions, arrivals. Nothing is replayed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypedDict

import numpy as np

from kvsim.analysis.metrics import HitCounts, num_warmup
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.analysis.metrics import HitFigure
    from kvsim.trace import Trace
    from kvsim.types import BlockKey

Numbers = np.ndarray[Any, np.dtype[np.int64]]

_S_NS: Final = 10**9
_PERCENTS: Final = (50, 90, 99)
_DEPTHS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class Figures(TypedDict):
    """The mean of numbers, three percentiles that occurred among them, and the largest."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceInfo:
    """The figures of a trace.

    Parameters
    ----------
    ties
        Requests that arrive at the same time as the one before.
    infinite_hits
        What a cache of unlimited size would hit, requests one after another, by the definitions of
        docs/results.md; without the warm-up. None if the trace has lengths only.
    input_lengths, output_lengths
        Tokens.
    depth_shares
        Depth -> of the block references at that depth (the first block of a prompt is 1), the
        share that was referred to before, and how many references there are.
    reuse_distances
        For each reference to a block that was referred to before: how many other blocks since.
        An LRU cache of more blocks than this, one request after another, would hit.
    num_sessions, turns
        Conversations, and the requests of each; None without sessions.
    burstiness
        Standard deviation of the gaps between arrivals over their mean: 0 for a clock, 1 for a
        Poisson process; None if all arrive at once.
    """

    trace: Trace
    warmup: float
    num_references: int
    num_unique_blocks: int
    input_tokens: int
    output_tokens: int
    span_s: float
    ties: int
    infinite_hits: dict[str, HitFigure] | None
    input_lengths: Figures
    output_lengths: Figures
    depth_shares: dict[int, tuple[float, int]]
    reuse_distances: Numbers
    num_sessions: int | None
    turns: Figures | None
    burstiness: float | None

    @property
    def title(self) -> str:
        """One line for people."""
        trace = self.trace
        return (
            f"{trace.name} ({trace.format}): {trace.num_requests:,} requests in"
            f" {self.span_s:,.1f} s, {self.num_references:,} references to"
            f" {self.num_unique_blocks:,} blocks of {trace.block_size} tokens,"
            f" partial: {trace.partial}"
        )

    def tables(self) -> list[list[list[str]]]:
        """Return the figures as tables for people: a head, then rows; the first column names."""
        heads = ["mean", "p50", "p90", "p99", "max"]
        rows: list[tuple[str, Figures | None]] = [
            ("input tokens", self.input_lengths),
            ("output tokens", self.output_lengths),
            ("turns a session", self.turns),
        ]
        if len(self.reuse_distances):
            rows.append(("reuse distance, blocks", figures_of(self.reuse_distances)))
        lengths = [
            [
                name,
                f"{found['mean']:,.1f}",
                *(f"{found[p]:,.0f}" for p in ("p50", "p90", "p99", "max")),
            ]
            for name, found in rows
            if found is not None
        ]
        tables = [[["figure", *heads], *lengths]]
        if self.infinite_hits is not None:
            head = ["hits, unlimited cache", "rate", "hits", "total"]
            hits = [
                [name, f"{each['rate']:.5f}", f"{each['hits']:,}", f"{each['total']:,}"]
                for name, each in self.infinite_hits.items()
            ]
            tables.append([head, *hits])
            head = ["sharing at block", "share", "references"]
            shares = [
                [str(depth), f"{share:.3f}", f"{refs:,}"]
                for depth, (share, refs) in self.depth_shares.items()
                if depth in _DEPTHS
            ]
            tables.append([head, *shares])
        facts = [
            ["arrivals at one time", f"{self.ties:,}"],
            ["rows out of order", f"{self.trace.num_disordered:,}"],
            ["burstiness", "-" if self.burstiness is None else f"{self.burstiness:.2f}"],
            ["sessions", "-" if self.num_sessions is None else f"{self.num_sessions:,}"],
        ]
        tables.append([["arrivals", ""], *facts])
        return tables

    def summary(self) -> dict[str, object]:
        """Return the figures as JSON values."""
        trace = self.trace
        return {
            "format": trace.format,
            "rows": trace.num_requests,
            "refs": self.num_references,
            "unique_blocks": self.num_unique_blocks,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "block_size": trace.block_size,
            "span_s": self.span_s,
            "ties": self.ties,
            "disorder": trace.num_disordered,
            "repairs": list(trace.repairs),
            "infinite_hits": self.infinite_hits,
        }

    def details(self) -> dict[str, object]:
        """Return the other figures as JSON values."""
        distances = self.reuse_distances
        return {
            "partial": self.trace.partial.value,
            "warmup": self.warmup,
            "input_lengths": self.input_lengths,
            "output_lengths": self.output_lengths,
            "sharing_by_depth": {
                str(depth): {"share": share, "refs": refs}
                for depth, (share, refs) in self.depth_shares.items()
                if depth in _DEPTHS
            },
            "reuse_distances": figures_of(distances) if len(distances) else None,
            "sessions": self.num_sessions,
            "turns": self.turns,
            "burstiness": self.burstiness,
        }


def describe(trace: Trace, *, warmup: float = 0.0) -> TraceInfo:
    """Return the figures of `trace`; changes nothing.

    Parameters
    ----------
    warmup
        Share of the requests, from the first, that `infinite_hits` leaves out.

    Raises
    ------
    ConfigError
        If `warmup` is not from 0 to less than 1.
    """
    if isinstance(warmup, bool) or not isinstance(warmup, int | float) or not 0 <= warmup < 1:
        raise ConfigError(
            f"warmup must be a share of the requests from 0 to less than 1, not {warmup!r}"
        )
    requests = trace.requests
    paths = [request.block_keys for request in requests]
    ids, lengths = _dense(paths)
    inputs = np.array([request.num_input_tokens for request in requests], dtype=np.int64)
    outputs = np.array([request.num_output_tokens for request in requests], dtype=np.int64)
    arrivals = np.array([request.arrived_at for request in requests], dtype=np.int64)
    is_first = _is_first(ids)
    turns = Counter(each.session_id for each in requests if each.session_id is not None)
    gaps = np.diff(arrivals)
    return TraceInfo(
        trace=trace,
        warmup=warmup,
        num_references=len(ids),
        num_unique_blocks=int(is_first.sum()),
        input_tokens=int(inputs.sum()),
        output_tokens=int(outputs.sum()),
        span_s=int(arrivals[-1]) / _S_NS,
        ties=int((gaps == 0).sum()),
        infinite_hits=_infinite_hits(trace, warmup) if trace.has_prefixes else None,
        input_lengths=figures_of(inputs),
        output_lengths=figures_of(outputs),
        depth_shares=_depth_shares(lengths, is_first),
        reuse_distances=reuse_distances(ids),
        num_sessions=len(turns) or None,
        turns=figures_of(np.array(list(turns.values()))) if turns else None,
        burstiness=float(gaps.std() / gaps.mean()) if gaps.any() else None,
    )


def reuse_distances(ids: Numbers) -> Numbers:
    """Return, for each id that occurred before, how many different ids have occurred since.

    Of the references between the two, those to ids that occur again before the second are not
    counted: their number is that of the earlier references whose own predecessor is later than
    ours. All of these are counted at once, a bit of the position at a time, O(n log n).

    Source: Mattson et al. (1970), the stack distance; counting inversions by radix.
    """
    previous = np.full(len(ids), -1, dtype=np.int64)
    order = np.argsort(ids, kind="stable")
    same = ids[order[1:]] == ids[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    repeated = np.flatnonzero(previous >= 0)
    before = previous[repeated]
    return repeated - before - 1 - _num_earlier_larger(before)


def figures_of(values: Numbers) -> Figures:
    """Return mean, percentiles that occurred, and maximum of at least one number."""
    ordered = np.sort(values)
    p50, p90, p99 = (float(ordered[-(-len(ordered) * p // 100) - 1]) for p in _PERCENTS)
    return Figures(mean=float(ordered.mean()), p50=p50, p90=p90, p99=p99, max=float(ordered[-1]))


def _num_earlier_larger(values: Numbers) -> Numbers:
    """Return for each of different numbers how many of those before it are larger.

    Two numbers are compared where their highest different bit is: among those with equal bits
    above it, each with a 0 is smaller than all with a 1.
    """
    counts = np.zeros(len(values), dtype=np.int64)
    if not len(values):
        return counts
    place = np.arange(len(values))  # sorted by the bits above, and by position within equal ones
    for bit in range(int(values.max()).bit_length() - 1, -1, -1):
        sorted_values = values[place]
        group = sorted_values >> (bit + 1)
        has_bit = (sorted_values >> bit) & 1
        num_set = np.cumsum(has_bit)
        starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
        base = np.repeat(num_set[starts] - has_bit[starts], np.diff(np.r_[starts, len(values)]))
        is_zero = has_bit == 0
        counts[place[is_zero]] += (num_set - base)[is_zero]
        place = place[np.argsort(sorted_values >> bit, kind="stable")]
    return counts


def _dense(paths: Sequence[Sequence[BlockKey]]) -> tuple[Numbers, Numbers]:
    """Return all keys as dense numbers, one prompt after another, and the prompts' lengths."""
    numbers: dict[BlockKey, int] = {}
    flat = [numbers.setdefault(key, len(numbers)) for key in chain.from_iterable(paths)]
    lengths = np.fromiter(map(len, paths), dtype=np.int64, count=len(paths))
    return np.array(flat, dtype=np.int64), lengths


def _is_first(ids: Numbers) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each id whether it is the first of its kind; dense ids appear in their order."""
    highest = np.maximum.accumulate(ids)
    return np.r_[True, highest[1:] > highest[:-1]] if len(ids) else np.zeros(0, dtype=bool)


def _depth_shares(
    lengths: Numbers, is_first: np.ndarray[Any, np.dtype[np.bool_]]
) -> dict[int, tuple[float, int]]:
    if not len(is_first):
        return {}
    starts = np.cumsum(lengths) - lengths
    depths = np.arange(len(is_first)) - np.repeat(starts, lengths)
    refs = np.bincount(depths)
    shared = np.bincount(depths, weights=~is_first)
    return {
        depth: (float(shared[depth - 1] / refs[depth - 1]), int(refs[depth - 1]))
        for depth in range(1, len(refs) + 1)
    }


def _infinite_hits(trace: Trace, warmup: float) -> dict[str, HitFigure]:
    size = trace.block_size
    first = num_warmup(warmup, trace.num_requests)
    seen: set[BlockKey] = set()
    blocks = prefix = tokens = usable = references = total = 0
    for request in trace.requests:
        keys = request.block_keys
        if request.request_id >= first:
            run = next((i for i, key in enumerate(keys) if key not in seen), len(keys))
            length = request.num_input_tokens
            blocks += sum(map(seen.__contains__, keys))
            prefix += run
            tokens += min(run * size, length)
            usable += min(run, (length - 1) // size) * size
            references += len(keys)
            total += length
        seen.update(keys)
    return {
        "block": HitCounts(blocks, 0, references).figure(),
        "prefix_block": HitCounts(prefix, 0, references).figure(),
        "prefix_token": HitCounts(tokens, 0, total).figure(),
        "prefix_token_usable": HitCounts(usable, 0, total).figure(),
    }
