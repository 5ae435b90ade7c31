"""Replay of any policy at one capacity, one request after another, without time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

from kvsim.collector import paused_collector
from kvsim.hitrate.bounds import lru_runs
from kvsim.hitrate.counting import Tally, check_capacity
from kvsim.hitrate.paths import find_pieces, number_nodes
from kvsim.hitrate.storage import access_infos, policy_runs
from kvsim.hitrate.tables import figures, html_table, percent, tidy_frame
from kvsim.policies import policy_factory
from kvsim.trace import annotate_next_use

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    from kvsim.analysis.metrics import HitCounts, HitFigure
    from kvsim.core.ports import BlockPolicy, EvictionPolicy
    from kvsim.hitrate.counting import Basis
    from kvsim.policies.registry import PolicyMaker
    from kvsim.trace import Trace

    AnyPolicy: TypeAlias = str | PolicyMaker | EvictionPolicy | BlockPolicy

REQUEST_COLUMNS: Final = {
    "request_id": "int64",
    "arrived_at_ns": "int64",
    "is_warmup": "bool",
    "num_input_tokens": "int64",
    "num_blocks": "int64",
    "num_hit_blocks": "int64",
    "num_hit_tokens": "int64",
    "num_usable_hit_tokens": "int64",
    "num_known_blocks": "int64",
}
"""Column of `HitReplay.requests` -> dtype. Known: some earlier request had the block."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HitReplay:
    """What each request found, by one policy at one capacity, with no requests in flight.

    Parameters
    ----------
    policy, capacity
        Its name; in blocks.
    basis
        The trace, the warm-up and the partial rule.
    runs, known
        Leading blocks that each request found, and that some earlier request had.
    counts
        The hits by definition.
    trace
        What was replayed.
    """

    policy: str
    capacity: int
    basis: Basis
    runs: tuple[int, ...]
    known: tuple[int, ...]
    counts: dict[str, HitCounts]
    trace: Trace

    @property
    def hits(self) -> dict[str, HitFigure]:
        """The hit rate by each definition, without the warm-up."""
        return figures(self.counts)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a definition; `attrs` says what the figures rest on."""
        columns = {
            "policy": "string", "capacity_blocks": "int64", "definition": "string",
            "hits": "int64", "total": "int64", "rate": "float64",
        }  # fmt: skip
        rows = [
            (self.policy, self.capacity, name, each.gpu, each.total, each.figure()["rate"])
            for name, each in self.counts.items()
        ]
        return tidy_frame(columns, rows, self._attrs())

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, in the order of the trace."""
        size = self.trace.block_size
        rows = [
            (
                each.request_id,
                each.arrived_at,
                each.request_id < self.basis.num_warmup_requests,
                each.num_input_tokens,
                len(each.block_keys),
                run,
                min(run * size, each.num_input_tokens),
                min(run, (each.num_input_tokens - 1) // size) * size,
                known,
            )
            for each, run, known in zip(self.trace.requests, self.runs, self.known, strict=True)
        ]
        return tidy_frame(REQUEST_COLUMNS, rows, self._attrs())

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON values."""
        return self._attrs() | {"hits": self.hits}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the share of the input tokens that hit over the time of arrival."""
        from kvsim.hitrate.plots import plot_over_time

        return plot_over_time(self, ax=ax)

    @property
    def title(self) -> str:
        """One line that says what this is."""
        return f"{self.policy} on {self.basis.trace}, {self.capacity:,} blocks"

    def __repr__(self) -> str:
        return f"<HitReplay {self.title}; prefix_token {self.hits['prefix_token']['rate']:.2%}>"

    def _repr_html_(self) -> str:
        rows = [
            (name, f"{each.gpu:,}", f"{each.total:,}", percent(each.figure()["rate"]))
            for name, each in self.counts.items()
        ]
        return html_table(self.title, ("", "hits", "of", "rate"), rows, [self.basis.caption])

    def _attrs(self) -> dict[str, object]:
        return self.basis.attrs() | {"policy": self.policy, "capacity_blocks": self.capacity}


class Replayer:
    """A trace made ready for a policy: what does not depend on the capacity is done once.

    Parameters
    ----------
    trace, policy, seed, recompute_ns
        As for `replay`.

    Attributes
    ----------
    name
        Of the policy.
    known
        Leading blocks of each request that some earlier request had.
    can_repeat
        Whether each capacity gets a policy of its own.
    """

    def __init__(
        self,
        trace: Trace,
        policy: AnyPolicy,
        *,
        seed: int = 0,
        recompute_ns: Callable[[int], int] | None = None,
    ) -> None:
        self.name, make, needs_future = policy_factory(policy)
        self.can_repeat = isinstance(policy, str) or callable(policy)
        self.known: Sequence[int]
        self.runs: Callable[[int], list[int]]
        if policy == "lru":
            # By the theorem that `kvsim.hitrate.stack` rests on; each request hits the same.
            pieces = find_pieces(trace)
            self.known = pieces.known()
            self.runs = lambda capacity: lru_runs(pieces, capacity)
            return
        nodes = number_nodes(trace)
        infos = access_infos((annotate_next_use(trace) if needs_future else trace).requests)
        self.known = nodes.known
        cost = recompute_ns or _by_depth
        self.runs = lambda capacity: policy_runs(
            nodes, infos, make, capacity, seed=seed, recompute_ns=cost
        )


@paused_collector()
def replay(
    trace: Trace,
    policy: AnyPolicy,
    capacity: int,
    *,
    warmup: float = 0.0,
    seed: int = 0,
    recompute_ns: Callable[[int], int] | None = None,
) -> HitReplay:
    """Replay a trace at one capacity under the prefix rule, one request after another.

    A policy gets the calls that the core makes when nothing is in flight, so each request hits
    what `kvsim.replay(..., instant=True)` hits with one tier (a cost-aware policy: given the same
    `recompute_ns`). But a request with more blocks than the cache is not refused: it keeps its
    first blocks.

    Parameters
    ----------
    trace
        What is asked for.
    policy
        A name; a class or function that takes a `PolicyContext`, in the batch or the per-block
        form; or one object. "lru" is computed from the pieces of the trace, without the class:
        the same hits in a fifth of the time.
    capacity
        In blocks.
    warmup
        Share of the requests, from the first, whose hits are not counted.
    seed
        For policies that draw.
    recompute_ns
        Cost of computing the block at a depth again, for cost-aware policies, as
        `RooflineCost.recompute_ns` gives it. Default: depth + 1.

    Raises
    ------
    UserError
        If the capacity, the warm-up or the policy cannot be used, or the policy breaks its
        contract, or there is nothing to hit.
    """
    check_capacity(capacity)
    tally = Tally(trace, warmup)
    replayer = Replayer(trace, policy, seed=seed, recompute_ns=recompute_ns)
    runs = replayer.runs(int(capacity))
    return HitReplay(
        policy=replayer.name,
        capacity=int(capacity),
        basis=tally.basis,
        runs=tuple(runs),
        known=tuple(replayer.known),
        counts=tally.counts(runs),
        trace=trace,
    )


def _by_depth(depth: int) -> int:
    return depth + 1
