"""The figures of a run, in plain Python: exact integers until the last division.

The definitions, which peers disagree about, are in docs/results.md.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

from kvsim.config import TIER_NAMES as ALL_TIER_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.analysis.records import RequestRecord, TransferRecord
    from kvsim.types import TierIndex

TIER_NAMES: Final = ("gpu", "cpu")
"""By tier index, of the two tiers that every result has. All names: `kvsim.config.TIER_NAMES`."""


def tier_name(tier: TierIndex) -> str:
    """Return the name of a tier; one beyond those that have names is called by its number."""
    return ALL_TIER_NAMES[tier] if tier < len(ALL_TIER_NAMES) else f"tier{tier}"


DEFINITIONS: Final = {
    "block": "hit blocks / block references",
    "prefix_block": "blocks of the leading run of hits / block references",
    "prefix_token": "tokens of the leading run, a partial last block by its tokens / input tokens",
    "prefix_token_usable": "tokens of the leading run's full blocks, at most (input tokens - 1) //"
    " block size of them, since one token must be computed / input tokens",
}
"""Name of each hit rate -> what it is."""

_NS_PER_MS: Final = 10**6
_DISK: Final = 2
_DIRECTIONS: Final = (
    ("swap_in", 1, 0),
    ("swap_out", 0, 1),
    ("disk_in", _DISK, 0),
    ("disk_out", 1, _DISK),
)
"""Name, source and target of each way that blocks are copied."""


class HitFigure(TypedDict):
    """A hit rate: `hits / total`, 0.0 if there was nothing to hit."""

    hits: int
    total: int
    rate: float


class HitCounts(NamedTuple):
    """Hits by tier, and what could have been hit."""

    gpu: int
    cpu: int
    total: int
    disk: int = 0

    def figure(self, *, tier: str | None = None) -> HitFigure:
        """Return the rate of one tier, or of all together."""
        by_tier = {"gpu": self.gpu, "cpu": self.cpu, "disk": self.disk}
        hits = sum(by_tier.values()) if tier is None else by_tier[tier]
        return HitFigure(hits=hits, total=self.total, rate=hits / self.total if self.total else 0.0)


def num_warmup(warmup: float, num_requests: int) -> int:
    """Return how many requests, from the first, the share `warmup` is, rounded down.

    In decimal, as it was written: 0.29 of 100 is 29, though the float 0.29 is a little less.
    """
    return int(Fraction(str(warmup)) * num_requests)


def count_hits(records: Iterable[RequestRecord], block_size: int) -> dict[str, HitCounts]:
    """Count the hits by each of `DEFINITIONS`; requests never admitted hit nothing.

    The leading run is split among the tiers in the order in which it is cached: the GPU's blocks
    come before the CPU's, and those before the third tier's.
    """
    references = tokens = 0
    blocks, partial, usable = [0, 0, 0], [0, 0, 0], [0, 0, 0]
    for record in records:
        num_tokens = record.request.num_input_tokens
        references += len(record.request.block_keys)
        tokens += num_tokens
        num_full = (num_tokens - 1) // block_size
        num_run = num_before = full_before = 0
        for tier, num_hits in enumerate(
            (record.num_gpu_hit_blocks, record.num_cpu_hit_blocks, record.num_disk_hit_blocks)
        ):
            if not num_hits:
                continue
            num_run += num_hits
            blocks[tier] += num_hits
            num_until = min(num_run * block_size, num_tokens)
            full_until = min(num_run, num_full)
            partial[tier] += num_until - num_before
            usable[tier] += (full_until - full_before) * block_size
            num_before, full_before = num_until, full_until
    return {
        "block": HitCounts(blocks[0], blocks[1], references, blocks[2]),
        # What a prefix cache matches is the leading run, so this is the same count.
        "prefix_block": HitCounts(blocks[0], blocks[1], references, blocks[2]),
        "prefix_token": HitCounts(partial[0], partial[1], tokens, partial[2]),
        "prefix_token_usable": HitCounts(usable[0], usable[1], tokens, usable[2]),
    }


def latency_ms(times_ns: Iterable[int]) -> dict[str, float] | None:
    """Return the mean and three percentiles in milliseconds; None if there is no time.

    The p-th percentile is the smallest time that at least p % do not exceed: one that occurred.
    """
    ordered = sorted(times_ns)
    if not ordered:
        return None
    figures = {
        f"p{percent}": ordered[-(-len(ordered) * percent // 100) - 1] / _NS_PER_MS
        for percent in (50, 90, 99)
    }
    return figures | {"mean": sum(ordered) / len(ordered) / _NS_PER_MS}


def ttft_ns(records: Iterable[RequestRecord]) -> list[int]:
    """Return the times from arrival to first token of those that made one."""
    return [
        record.first_token_at - record.request.arrived_at
        for record in records
        if record.first_token_at is not None
    ]


def busy_ns(transfers: Iterable[TransferRecord]) -> int:
    """Return how long at least one of the transfers was under way."""
    total = end = 0
    for started_at, finished_at in sorted(
        (each.started_at, each.finished_at) for each in transfers
    ):
        if finished_at > end:
            total += finished_at - max(started_at, end)
            end = finished_at
    return total


def transfer_figures(
    transfers: Sequence[TransferRecord], block_bytes: int
) -> dict[str, dict[str, int | float]]:
    """Return the figures of both directions; bytes are over all ranks, `block_bytes` a block.

    `blocks`, `bytes` and `busy_ms` are of the transfers that ended "done". The third tier's are
    there if there were any.
    """
    figures: dict[str, dict[str, int | float]] = {}
    for direction, source, target in _DIRECTIONS:
        issued = [each for each in transfers if (each.source, each.target) == (source, target)]
        if not issued and _DISK in (source, target):
            continue
        done = [each for each in issued if each.outcome == "done"]
        blocks = sum(each.num_blocks for each in done)
        figures[direction] = {
            "count": len(issued),
            "blocks": blocks,
            "bytes": blocks * block_bytes,
            "busy_ms": busy_ns(done) / _NS_PER_MS,
            **{
                outcome: sum(each.outcome == outcome for each in issued)
                for outcome in ("done", "failed", "cancelled", "timed_out")
            },
        }
    return figures
