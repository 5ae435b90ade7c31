"""The least cost that any policy can have on a GPU and an exclusive CPU tier."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from kvsim.analysis.metrics import HitCounts
from kvsim.collector import paused_collector
from kvsim.errors import ConfigError
from kvsim.hitrate.bounds import opt_runs
from kvsim.hitrate.counting import Tally, check_capacity
from kvsim.hitrate.paths import find_pieces
from kvsim.hitrate.tables import figures, html_table, tidy_frame, tier_figures

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from kvsim.analysis.metrics import HitFigure
    from kvsim.hitrate.counting import Basis
    from kvsim.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCosts:
    """What a block reference costs, in any one unit; a hit on the GPU costs nothing.

    Parameters
    ----------
    cpu_hit
        Copy a block up.
    miss
        Compute a block.
    demotion
        Copy a block down.

    Raises
    ------
    ConfigError
        If one is not a finite number of at least 0, or a hit on the CPU costs more than a miss.
    """

    cpu_hit: float = 0.1
    miss: float = 1.0
    demotion: float = 0.0

    def __post_init__(self) -> None:
        for name in ("cpu_hit", "miss", "demotion"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not isfinite(value) or value < 0:
                raise ConfigError(
                    f"cost of {name} must be a finite number of 0 or more, not {value!r}"
                )
        if self.cpu_hit > self.miss:
            raise ConfigError(
                f"cost of cpu_hit must be at most that of a miss ({self.miss}), not {self.cpu_hit}"
            )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TwoTierBound:
    """The clairvoyant optimum of two exclusive tiers.

    Parameters
    ----------
    gpu_blocks, cpu_blocks, costs
        Sizes, and what references cost.
    basis
        The trace, the warm-up and the partial rule.
    counts
        Hits on each tier of the policy that reaches it, by definition.
    num_demotions
        Copies down of that policy: each is hit once, or none pays.
    cost
        Of all block references that count.
    cost_with_kept_copies
        A lower bound where the CPU may keep its copy after a block has come up (a second demotion
        is free then): the form without demotion costs.
    """

    gpu_blocks: int
    cpu_blocks: int
    costs: TierCosts
    basis: Basis
    counts: dict[str, HitCounts]
    num_demotions: int
    cost: float
    cost_with_kept_copies: float

    @property
    def hits(self) -> dict[str, HitFigure]:
        """The hit rates of both tiers together."""
        return figures(self.counts)

    @property
    def cost_per_reference(self) -> float:
        """The cost divided by the block references."""
        total = self.counts["block"].total
        return self.cost / total if total else 0.0

    @property
    def frame(self) -> pd.DataFrame:
        """One row a definition; the costs are in `attrs`."""
        columns = {
            "gpu_blocks": "int64", "cpu_blocks": "int64", "definition": "string",
            "gpu_hits": "int64", "cpu_hits": "int64", "hits": "int64", "total": "int64",
            "rate": "float64",
        }  # fmt: skip
        rows = [
            (
                self.gpu_blocks,
                self.cpu_blocks,
                name,
                each.gpu,
                each.cpu,
                each.gpu + each.cpu,
                each.total,
                each.figure()["rate"],
            )
            for name, each in self.counts.items()
        ]
        return tidy_frame(columns, rows, self._attrs())

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON values."""
        tiers = {f"{tier}_hits": tier_figures(self.counts, tier) for tier in ("gpu", "cpu")}
        return self._attrs() | tiers | {"hits": self.hits}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw what becomes of the block references, and what it costs."""
        from kvsim.hitrate.plots import plot_bound

        return plot_bound(self, ax=ax)

    @property
    def title(self) -> str:
        """One line that says what this is."""
        return (
            f"optimum of {self.gpu_blocks:,} GPU + {self.cpu_blocks:,} CPU blocks on"
            f" {self.basis.trace}: {self.cost_per_reference:.4f} a reference"
        )

    def __repr__(self) -> str:
        return f"<TwoTierBound {self.title}>"

    def _repr_html_(self) -> str:
        rows = [
            (name, f"{each.gpu:,}", f"{each.cpu:,}", f"{each.total:,}")
            for name, each in self.counts.items()
        ]
        costs = self.costs
        notes = [
            f"costs: CPU hit {costs.cpu_hit:g}, miss {costs.miss:g}, demotion {costs.demotion:g}",
            self.basis.caption,
        ]
        return html_table(self.title, ("", "GPU", "CPU", "of"), rows, notes)

    def _attrs(self) -> dict[str, object]:
        costs = self.costs
        return self.basis.attrs() | {
            "policy": "opt",
            "gpu_blocks": self.gpu_blocks,
            "cpu_blocks": self.cpu_blocks,
            "costs": {
                "cpu_hit": costs.cpu_hit, "miss": costs.miss, "demotion": costs.demotion,
            },
            "demotions": self.num_demotions,
            "cost": self.cost,
            "cost_with_kept_copies": self.cost_with_kept_copies,
        }  # fmt: skip


@paused_collector()
def two_tier_bound(
    trace: Trace,
    gpu_blocks: int,
    cpu_blocks: int,
    costs: TierCosts | None = None,
    *,
    warmup: float = 0.0,
) -> TwoTierBound:
    """Return the least cost of a trace on G GPU and H exclusive CPU blocks, in closed form.

    With O(C) the hits of the optimum of C blocks ("resident"), m, c and w the costs of a miss, a
    CPU hit and a demotion:

        cost = m (references - O(G + H)) + min(w + c, m) (O(G + H) - O(G))

    A block is, between two uses, dropped (m), kept on the GPU (0) or demoted once (w + c). Belady
    solves both packings, GPU and total, and what it keeps in the smaller cache it keeps in the
    larger one, so one policy is best at both.

    Exact if every miss costs the same, whole paths must be on the GPU when their request ends, a
    block is in one tier, and copies up and down swap at once. Where the CPU keeps its copy, use
    `cost_with_kept_copies`; where a miss costs more the deeper it is, neither is a bound unless m
    is the least cost of any.

    Parameters
    ----------
    trace
        What is asked for.
    gpu_blocks, cpu_blocks
        G and H.
    costs
        Default: 0.1 a CPU hit, 1 a miss, demotions free.
    warmup
        Share of the requests, from the first, whose references are not counted (the optimum is
        that of the whole trace then).

    Raises
    ------
    UserError
        If a size or the warm-up cannot be used, there is nothing to hit, or G is less than the
        longest request: then a path cannot be on the GPU, and the form does not hold.
    """
    check_capacity(gpu_blocks, name="gpu_blocks")
    check_capacity(cpu_blocks, name="cpu_blocks", least=0)
    costs = costs or TierCosts()
    tally = Tally(trace, warmup)
    pieces = find_pieces(trace)
    longest = max(pieces.lengths)
    if longest > gpu_blocks:
        raise ConfigError(
            f"gpu_blocks must be at least the longest request of trace {trace.name}, {longest}"
            f" blocks, for the bound to hold, not {gpu_blocks}"
        )
    following = pieces.following()
    near = tally.hits(opt_runs(following, pieces.lengths, gpu_blocks))
    all_ = tally.hits(opt_runs(following, pieces.lengths, gpu_blocks + cpu_blocks))
    total = tally.totals["block"]
    num_cpu = all_["block"] - near["block"]
    misses = costs.miss * (total - all_["block"])
    pays = costs.demotion + costs.cpu_hit < costs.miss
    each = min(costs.demotion + costs.cpu_hit, costs.miss)
    reached = all_ if pays else near
    return TwoTierBound(
        gpu_blocks=gpu_blocks,
        cpu_blocks=cpu_blocks,
        costs=costs,
        basis=tally.basis,
        counts={
            name: HitCounts(near[name], reached[name] - near[name], total_)
            for name, total_ in tally.totals.items()
        },
        num_demotions=num_cpu if pays else 0,
        cost=misses + each * num_cpu,
        cost_with_kept_copies=misses + costs.cpu_hit * num_cpu,
    )
