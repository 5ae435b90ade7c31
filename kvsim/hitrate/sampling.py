"""Hit rates of any policy from a sample of the blocks: faster, with an error that is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from kvsim.analysis.metrics import DEFINITIONS
from kvsim.collector import paused_collector
from kvsim.core.tree import ROOT
from kvsim.errors import ConfigError
from kvsim.hitrate.counting import Tally, checked_capacities
from kvsim.hitrate.paths import NodePaths, number_nodes
from kvsim.hitrate.storage import access_infos, policy_runs
from kvsim.hitrate.tables import check_definition, html_table, percent, tidy_frame
from kvsim.policies import policy_factory
from kvsim.trace import annotate_next_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    from kvsim.core.ports import AccessInfo
    from kvsim.hitrate.counting import Basis
    from kvsim.hitrate.replays import AnyPolicy
    from kvsim.trace import Trace
    from kvsim.types import NodeId, Request

HOT_SHARE: Final = 0.001
"""Blocks with more than this share of the references are always kept: without, a first block that
is in most prompts is drawn or not, and moves the estimate by its share (4 points measured)."""


class SamplingError(NamedTuple):
    """Mean absolute error in points of the block hit rate at rate 0.1, on two real traces.

    `is_biased`: at some capacity most of it has one sign, so other seeds do not average it away.
    """

    conversation: float
    synthetic: float
    is_biased: bool


KNOWN_ERRORS: Final = {
    "2q": SamplingError(0.59, 0.99, is_biased=True),
    "arc": SamplingError(0.13, 0.15, is_biased=False),
    "belady": SamplingError(0.11, 0.09, is_biased=False),
    "fifo": SamplingError(0.95, 1.35, is_biased=True),
    "gdsf": SamplingError(0.23, 0.42, is_biased=True),
    "length-aware": SamplingError(1.09, 1.29, is_biased=True),
    "lfu": SamplingError(0.15, 0.11, is_biased=False),
    "lfu-persistent": SamplingError(0.13, 0.09, is_biased=False),
    "lru": SamplingError(0.09, 0.10, is_biased=False),
    "random": SamplingError(0.17, 0.48, is_biased=True),
    "s3fifo": SamplingError(0.46, 1.15, is_biased=True),
    "sieve": SamplingError(0.15, 0.58, is_biased=True),
    "slru": SamplingError(0.15, 0.13, is_biased=False),
}
"""By policy; the mean over 1,000 to 30,000 blocks and 4 seeds. Source: measured for kvsim on the
public Mooncake traces by tests/bench/sampling_error.py."""

SAMPLED_COLUMNS: Final = {
    "policy": "string",
    "capacity_blocks": "int64",
    "definition": "string",
    "rate": "float64",
    "expected_error": "float64",
}
"""Column of `SampledCurve.frame` -> dtype. Both are shares; the error may be missing (NaN)."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SampledCurve:
    """Estimated hit rates at some capacities, by every definition, with no requests in flight.

    Parameters
    ----------
    policy
        Its name.
    basis
        The trace, the warm-up and the partial rule.
    capacities, rates
        In blocks; the estimates of each, by definition.
    rate, seed
        Share of the blocks that was asked for, and what the draw began with.
    num_sampled_blocks, num_hot_blocks, num_blocks
        Kept in all; kept because they are hot; in the trace.
    error
        What is known of this policy's error; None: nothing.
    """

    policy: str
    basis: Basis
    capacities: tuple[int, ...]
    rates: tuple[dict[str, float], ...]
    rate: float
    seed: int
    num_sampled_blocks: int
    num_hot_blocks: int
    num_blocks: int
    error: SamplingError | None

    @property
    def expected_error(self) -> float:
        """Mean absolute error to expect, as a share: the worse of two traces, at rate 0.1.

        Where it was never measured, not a number.
        """
        return float("nan") if self.error is None else max(self.error[:2]) / 100

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a capacity and definition."""
        rows = [
            (self.policy, capacity, name, rate, self.expected_error)
            for capacity, rates in zip(self.capacities, self.rates, strict=True)
            for name, rate in rates.items()
        ]
        return tidy_frame(SAMPLED_COLUMNS, rows, self._attrs())

    def to_dict(self) -> dict[str, object]:
        """Return everything as JSON values."""
        points = [
            {"capacity": capacity, "hits": {name: {"rate": rate} for name, rate in rates.items()}}
            for capacity, rates in zip(self.capacities, self.rates, strict=True)
        ]
        return self._attrs() | {"points": points}

    def plot(self, ax: Axes | None = None, *, definition: str = "prefix_token") -> Axes:
        """Draw the estimates with the error to expect."""
        from kvsim.hitrate.plots import plot_sampled

        check_definition(definition)
        return plot_sampled(self, definition=definition, ax=ax)

    @property
    def note(self) -> str:
        """What is known of the error, in one sentence."""
        if self.error is None:
            return f"the error of sampling is not known for {self.policy}: compare one exact replay"
        text = (
            f"mean error measured at rate 0.1: {self.error.conversation} points on one trace,"
            f" {self.error.synthetic} on another"
        )
        bias = "; it is a bias, which other seeds do not average away"
        return text + (bias if self.error.is_biased else "")

    @property
    def title(self) -> str:
        """One line that says what this is."""
        return f"{self.policy} on {self.basis.trace}: estimated from {self.rate:g} of the blocks"

    def __repr__(self) -> str:
        return f"<SampledCurve {self.title}, {len(self.capacities)} capacities>"

    def _repr_html_(self) -> str:
        rows = [
            (f"{capacity:,}", *map(percent, rates.values()))
            for capacity, rates in zip(self.capacities, self.rates, strict=True)
        ]
        head = ("blocks", *DEFINITIONS)
        return html_table(self.title, head, rows, [self.note, self.basis.caption])

    def _attrs(self) -> dict[str, object]:
        return self.basis.attrs() | {
            "policy": self.policy,
            "sampling_rate": self.rate,
            "seed": self.seed,
            "sampled_blocks": self.num_sampled_blocks,
            "hot_blocks": self.num_hot_blocks,
            "blocks": self.num_blocks,
            "sampling_note": self.note,
        }


@paused_collector()
def sampled_replay(
    trace: Trace,
    policy: AnyPolicy,
    capacities: Iterable[int],
    rate: float = 0.1,
    *,
    warmup: float = 0.0,
    seed: int = 0,
    recompute_ns: Callable[[int], int] | None = None,
) -> SampledCurve:
    """Estimate the hit rates of any policy from a share of the blocks.

    Hot blocks are kept. Of the others, a block is kept each time a phase passes 1, which grows by
    `rate` a block and goes on from a block to its first child; a root, and a branch, begin with a
    random one. A kept block hangs below its nearest kept ancestor. The cache gets the room of the
    hot blocks and `rate` of the rest; hits of the others are scaled by their references.

    `SampledCurve.note` says what is known of the error. Policies that look at a request's blocks as
    a batch (S3-FIFO, SIEVE) are biased: the sample has shorter batches.

    Parameters
    ----------
    trace
        What is asked for.
    policy
        A name, or a class or function that takes a `PolicyContext`.
    capacities
        In blocks of the whole trace. One at which `rate` of the room is less than a longest
        sampled path is not worth asking for.
    rate
        Share of the blocks, above 0 and up to 1 (then all are kept, and nothing is estimated).
    warmup
        Share of the requests, from the first, whose hits are not counted.
    seed
        For the draw, and for policies that draw.
    recompute_ns
        As for `kvsim.hitrate.replay`.

    Raises
    ------
    UserError
        If an argument cannot be used, or there is nothing to hit.

    Notes
    -----
    Source: C. A. Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015, for the
    scaled cache; the draw along the path and the hot blocks are ours.
    """
    chosen = checked_capacities(capacities)
    name, make, needs_future = policy_factory(policy)
    _check(rate, policy, name)
    tally = Tally(trace, warmup)
    nodes = number_nodes(trace)
    requests = (annotate_next_use(trace) if needs_future else trace).requests
    sample = _draw(nodes, requests, rate, Random(seed))
    cost = recompute_ns or _by_depth
    weigh = _Weights(trace, sample, tally)
    estimates: list[dict[str, float]] = []
    for capacity in chosen:
        runs = policy_runs(
            sample.nodes,
            sample.infos,
            make,
            sample.scaled(capacity),
            seed=seed,
            recompute_ns=lambda depth: cost(round(depth / rate)),
        )
        estimates.append(weigh.rates(runs))
    return SampledCurve(
        policy=name,
        basis=tally.basis,
        capacities=tuple(chosen),
        rates=tuple(estimates),
        rate=rate,
        seed=seed,
        num_sampled_blocks=len(sample.nodes.parent) - 1,
        num_hot_blocks=sample.num_hot,
        num_blocks=len(nodes.parent) - 1,
        error=KNOWN_ERRORS.get(name),
    )


def _check(rate: float, policy: AnyPolicy, name: str) -> None:
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not is_number or not 0 < rate <= 1:
        raise ConfigError(f"rate must be a share of the blocks above 0 and up to 1, not {rate!r}")
    if not isinstance(policy, str) and not callable(policy):
        raise ConfigError(f"policy must be a class or a name to be sampled, not one {name} object")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """The tree of kept blocks, and which of them each request has.

    `depths[r]`: positions of the kept blocks in request r's path. `is_hot` by node of the sample.
    """

    nodes: NodePaths
    infos: list[AccessInfo]
    depths: list[list[int]]
    is_hot: list[bool]
    rate: float

    @property
    def num_hot(self) -> int:
        return sum(self.is_hot)

    def scaled(self, capacity: int) -> int:
        """Return the room that stands for `capacity` blocks."""
        hot = min(self.num_hot, capacity)
        return max(1, hot + round(self.rate * (capacity - hot)))


def _draw(nodes: NodePaths, requests: Sequence[Request], rate: float, rng: Random) -> _Sample:
    is_hot = _hot_nodes(nodes)
    kept = _kept_nodes(nodes, is_hot, rate, rng)
    new_id = {node: index for index, node in enumerate(kept, start=1)}
    paths: list[list[NodeId]] = []
    depths: list[list[int]] = []
    infos: list[AccessInfo] = []
    parent: list[NodeId] = [ROOT] * (len(kept) + 1)
    for path, info in zip(nodes.paths, access_infos(requests), strict=True):
        at = [depth for depth, node in enumerate(path) if node in new_id]
        short = [new_id[path[depth]] for depth in at]
        for above, node in zip((ROOT, *short), short, strict=False):
            parent[node] = above
        paths.append(short)
        depths.append(at)
        future = info.next_use_at
        if future is not None:
            info = info._replace(next_use_at=[future[depth] for depth in at])
        infos.append(info)
    key_of = [None, *(nodes.key_of[node] for node in kept)]
    small = NodePaths(paths=paths, parent=parent, key_of=key_of, known=[])
    hot = [False, *(is_hot[node] for node in kept)]
    return _Sample(nodes=small, infos=infos, depths=depths, is_hot=hot, rate=rate)


def _hot_nodes(nodes: NodePaths) -> list[bool]:
    uses = [0] * len(nodes.parent)
    for path in nodes.paths:
        for node in path:
            uses[node] += 1
    limit = HOT_SHARE * sum(uses)
    return [count > limit for count in uses]


def _kept_nodes(nodes: NodePaths, is_hot: Sequence[bool], rate: float, rng: Random) -> list[NodeId]:
    """Return the blocks that are kept, in the order in which they first appear."""
    phase = [0.0] * len(nodes.parent)
    has_child = [False] * len(nodes.parent)
    has_child[ROOT] = True  # every root begins anew
    kept: list[NodeId] = []
    for node in range(1, len(nodes.parent)):
        above = nodes.parent[node]
        at = rng.random() if has_child[above] else phase[above]
        has_child[above] = True
        if is_hot[node]:
            kept.append(node)
        else:
            at += rate
            if at >= 1:
                at -= 1
                kept.append(node)
        phase[node] = at
    return kept


class _Weights:
    """Turns runs of the sample into rates of the whole trace.

    What is sampled of each definition's weight is known exactly, so the share of it that hits is
    scaled, not the hits.
    """

    def __init__(self, trace: Trace, sample: _Sample, tally: Tally) -> None:
        self._trace, self._sample, self._tally = trace, sample, tally
        self._hot_total, self._cold_total = self._split(list(map(len, sample.nodes.paths)))
        self._all_cold = {
            name: whole - self._hot_total[name] for name, whole in tally.whole().items()
        }

    def rates(self, runs: Sequence[int]) -> dict[str, float]:
        """Return the estimate by each definition."""
        hot, cold = self._split(runs)
        found: dict[str, float] = {}
        for name, total in self._tally.totals.items():
            sampled = self._cold_total[name]
            scale = self._all_cold[name] / sampled if sampled else 0.0
            found[name] = (hot[name] + cold[name] * scale) / total if total else 0.0
        return found

    def _split(self, runs: Sequence[int]) -> tuple[dict[str, int], dict[str, int]]:
        """Return the weights of the hot and of the other blocks of the leading runs."""
        size, sample = self._trace.block_size, self._sample
        sums = [[0, 0, 0], [0, 0, 0]]  # hot, cold; blocks, tokens, usable tokens
        start = self._tally.first
        for request, run in zip(self._trace.requests[start:], runs[start:], strict=True):
            tokens = request.num_input_tokens
            path = sample.nodes.paths[request.request_id]
            for node, depth in zip(path[:run], sample.depths[request.request_id], strict=False):
                into = sums[0] if sample.is_hot[node] else sums[1]
                into[0] += 1
                into[1] += min(size, tokens - depth * size)
                into[2] += size if (depth + 1) * size < tokens else 0
        hot, cold = (dict(zip(DEFINITIONS, (each[0], *each), strict=True)) for each in sums)
        return hot, cold


def _by_depth(depth: int) -> int:
    return depth + 1
