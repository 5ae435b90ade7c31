"""The answer of `kvsim.size`: sizes, what they hit, and what one more GiB is worth there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from kvsim.capacity.room import short_gib
from kvsim.hitrate.tables import html_table, percent, tidy_frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from kvsim.analysis.metrics import HitFigure
    from kvsim.capacity.room import Room
    from kvsim.hitrate import HitCurve

KNEE_PERCENTS: Final = (50, 80, 90, 95, 99)
"""Shares of the infinite cache's hits whose capacities are given."""

POINT_COLUMNS: Final = {
    "name": "string",
    "gpu_blocks": "int64",
    "gpu_gib": "float64",
    "cpu_blocks": "int64",
    "cpu_gib": "float64",
    "gpu_rate": "float64",
    "cpu_rate": "float64",
    "rate": "float64",
    "new_points_per_gib": "float64",
    "moved_points_per_gib": "float64",
}
"""Column of `Sizing.frame` -> dtype. Rates are shares, `points` are percentage points."""

HEAD: Final = (
    "", "GPU", "GiB", "CPU", "GiB", "hits", "on GPU", "new", "moved",
)  # fmt: skip


class Worth(NamedTuple):
    """What more blocks in a tier bring, in hits of the chosen definition.

    `new_hits`: more hits in all, the same number on whichever tier the blocks are. `moved_hits`:
    CPU hits that become GPU hits if the blocks are on the GPU: reloads that are saved.
    """

    num_blocks: int
    new_hits: int
    moved_hits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPoint:
    """Two sizes, what they hit, and what one more GiB is worth there.

    Parameters
    ----------
    name
        Which sizes: an answer, what is fixed, or a knee.
    gpu_blocks, cpu_blocks, gpu_gib, cpu_gib
        The sizes, over all ranks together, K and V.
    gpu_rate, cpu_rate, rate
        Hit rate on each tier, and on both.
    new_points_per_gib
        Percentage points of hit rate that one more GiB adds, on either tier.
    moved_points_per_gib
        Points of hit rate that one more GiB *of GPU* moves up from the CPU besides.
    """

    name: str
    gpu_blocks: int
    cpu_blocks: int
    gpu_gib: float
    cpu_gib: float
    gpu_rate: float
    cpu_rate: float
    rate: float
    new_points_per_gib: float
    moved_points_per_gib: float

    def to_dict(self) -> dict[str, object]:
        """Return the point as JSON values."""
        return {name: getattr(self, name) for name in POINT_COLUMNS}

    def cells(self) -> tuple[str, ...]:
        """Return the point as a row of text under `HEAD`."""
        return (
            self.name, f"{self.gpu_blocks:,}", short_gib(self.gpu_gib), f"{self.cpu_blocks:,}",
            short_gib(self.cpu_gib), percent(self.rate), percent(self.gpu_rate),
            f"{self.new_points_per_gib:.3f}", f"{self.moved_points_per_gib:.3f}",
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Sizing:
    """What sizes of the tiers reach a hit rate, with no requests in flight.

    Parameters
    ----------
    curve
        The LRU curve that everything is read from.
    definition, target
        Which hit rate is to be reached, as a share.
    model, hardware, kv_bits
        What a block's bytes are computed from.
    block_bytes
        Of one block over all ranks, K and V.
    fixed_by
        What set the size of the GPU tier, in words.
    answers
        "GPU alone" and "GPU + CPU" (with the GPU tier as it is fixed); none if the target cannot
        be reached.
    fixed
        The fixed GPU tier without a CPU tier.
    knees
        Capacities of one tier: for `KNEE_PERCENTS` of the infinite cache's hits, and the point
        farthest above the chord of the curve. None if nothing is ever hit.
    room
        What running requests need besides.
    warnings
        What makes an answer impossible on this machine, a sentence each.
    """

    curve: HitCurve
    definition: str
    target: float
    model: str
    hardware: str
    kv_bits: int
    block_bytes: int
    fixed_by: str
    answers: tuple[TierPoint, ...]
    fixed: TierPoint
    knees: tuple[TierPoint, ...]
    room: Room
    warnings: tuple[str, ...] = ()

    @property
    def infinite(self) -> HitFigure:
        """What a cache that never evicts hits."""
        return self.curve.infinite[self.definition].figure()

    @property
    def is_reachable(self) -> bool:
        """Whether some capacity reaches the target."""
        return bool(self.answers)

    @property
    def points(self) -> tuple[TierPoint, ...]:
        """Every size that is talked about: answers, the fixed tier, knees."""
        return (*self.answers, self.fixed, *self.knees)

    def point(self, name: str) -> TierPoint | None:
        """Return the point with this name; None if there is none."""
        return next((point for point in self.points if point.name == name), None)

    def worth(self, gpu_blocks: int, cpu_blocks: int, num_blocks: int) -> Worth:
        """Return what `num_blocks` more blocks bring to tiers of any sizes."""
        return worth(self.curve, self.definition, gpu_blocks, cpu_blocks, num_blocks)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a point; `attrs` says what the figures rest on."""
        rows = [tuple(point.to_dict().values()) for point in self.points]
        return tidy_frame(POINT_COLUMNS, rows, self._attrs())

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return self._attrs() | {
            "reachable": self.is_reachable,
            "verdict": self.verdict,
            "warnings": list(self.warnings),
            "answers": [point.to_dict() for point in self.answers],
            "fixed": self.fixed.to_dict(),
            "knees": [point.to_dict() for point in self.knees],
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the curve with the target, the answer, the fixed tier and the knees."""
        from kvsim.capacity.plots import plot_sizing

        return plot_sizing(self, ax=ax)

    @property
    def title(self) -> str:
        """One line that says what this is."""
        return (
            f"{self.curve.basis.trace}: {percent(self.target)} {self.definition} for"
            f" {self.model} on {self.hardware}, KV in {self.kv_bits} bits"
        )

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        if not self.answers:
            return (
                f"no size reaches {self.target:.4f}: the infinite cache hits"
                f" {self.infinite['rate']:.4f}"
            )
        alone, both = self.answers
        if not alone.gpu_blocks:
            return "a target of 0 needs no cache: it is reached with less than one block"
        sentence = f"{alone.gpu_blocks:,} blocks, {short_gib(alone.gpu_gib)} GiB, on the GPU alone"
        if not both.cpu_blocks:
            return f"{sentence}; the GPU tier has {both.gpu_blocks:,}, so it needs no CPU tier"
        return (
            f"{sentence}; or the {both.gpu_blocks:,} it has ({short_gib(both.gpu_gib)} GiB) and"
            f" {both.cpu_blocks:,} blocks, {short_gib(both.cpu_gib)} GiB, on the CPU"
        )

    def table_rows(self) -> list[tuple[str, ...]]:
        """Return one row a point as text, under `HEAD`."""
        return [point.cells() for point in self.points]

    def notes(self) -> list[str]:
        """Return the answer and what a reader of the table must know."""
        found = [self.verdict, *self.warnings]
        found.append(
            f"GPU tier: {self.fixed_by}; a block has {self.block_bytes / 2**20:,.2f} MiB, K and V,"
            " all ranks; tiers are exclusive, LRU"
        )
        found.append(
            "GPU, CPU: blocks; new: points of hit rate that one more GiB adds on either tier;"
            " moved: points that one more GiB of GPU also moves up from the CPU, reloads saved"
        )
        found += [self.room.note, self.curve.basis.caption]
        return found

    def __repr__(self) -> str:
        return f"<Sizing {self.title}: {self.verdict}>"

    def _repr_html_(self) -> str:
        return html_table(self.title, HEAD, self.table_rows(), self.notes())

    def _attrs(self) -> dict[str, object]:
        return self.curve.basis.attrs() | {
            "policy": "lru",
            "mode": "exclusive",
            "definition": self.definition,
            "target_hit": self.target,
            "model": self.model,
            "hardware": self.hardware,
            "kv_bits": self.kv_bits,
            "block_bytes": self.block_bytes,
            "fixed_by": self.fixed_by,
            "infinite": self.infinite,
            "room": self.room.to_dict(),
        }


def worth(
    curve: HitCurve, definition: str, gpu_blocks: int, cpu_blocks: int, num_blocks: int
) -> Worth:
    """Return what more blocks bring, from one LRU stack cut at the sizes of exclusive tiers."""
    both = gpu_blocks + cpu_blocks
    new = hits_at(curve, definition, both + num_blocks) - hits_at(curve, definition, both)
    moved_to = min(gpu_blocks + num_blocks, both)
    moved = hits_at(curve, definition, moved_to) - hits_at(curve, definition, gpu_blocks)
    return Worth(num_blocks, new, moved)


def hits_at(curve: HitCurve, definition: str, num_blocks: int) -> int:
    """Return the hits of an LRU cache of `num_blocks` blocks, 0 among them."""
    assert curve.histogram is not None  # of LRU
    return curve.histogram.hits(num_blocks)[definition]
