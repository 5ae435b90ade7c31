"""What each engine would report on one trace, and which of its rules makes the difference.

Begin with our own `block` figure and change one rule at a time until all are the engine's: first
what it evicts, which changes what is hit; then which blocks have keys; then how hits are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from kvsim.collector import paused_collector
from kvsim.engines.presets import ENGINES, LastToken, Unit, find_engine
from kvsim.engines.replays import Evicts, Tail, runs_of
from kvsim.errors import ConfigError, UserError
from kvsim.hitrate.counting import Tally, check_capacity
from kvsim.hitrate.tables import html_table, percent, tidy_frame
from kvsim.trace import open_trace
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from os import PathLike

    import pandas as pd
    from matplotlib.axes import Axes

    from kvsim.analysis.metrics import HitFigure
    from kvsim.engines.presets import EnginePreset
    from kvsim.hitrate.counting import Basis
    from kvsim.trace import Trace

STEP_COLUMNS: Final = {
    "engine": "string",
    "rule": "string",
    "value": "string",
    "hits": "int64",
    "total": "int64",
    "rate": "float64",
    "delta": "float64",
}
"""Column of `Explanation.frame` -> dtype."""

OURS: Final = "kvsim block"
"""The first step of every waterfall: `block` of `kvsim.hitrate.lru_curve`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The figure after one rule more is the engine's.

    Parameters
    ----------
    rule, value
        Which rule, and what it is now.
    figure
        Hits, total and rate.
    delta
        This rate less the one before; 0 for the first.
    """

    rule: str
    value: str
    figure: HitFigure
    delta: float

    def to_dict(self) -> dict[str, object]:
        """Return the step as JSON values."""
        return {"rule": self.rule, "value": self.value, "delta": self.delta, **self.figure}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """The way from our figure to an engine's.

    Parameters
    ----------
    engine
        Whose rules.
    steps
        From `OURS` on.
    pool
        What its cache hits, if every key of the trace is a block: hits of block references.
    reported
        What it would report.
    """

    engine: EnginePreset
    steps: tuple[Step, ...]
    pool: HitFigure
    reported: HitFigure

    @property
    def largest(self) -> Step | None:
        """The step that changes most; None if none changes anything."""
        found = max(self.steps, key=lambda step: abs(step.delta))
        return found if found.delta else None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Explanation:
    """What engines would report on a trace at one capacity, with no requests in flight.

    Parameters
    ----------
    gpu_blocks
        The capacity.
    basis
        The trace, the warm-up and the partial rule that the trace was read with.
    ours
        Our `block` figure, which every waterfall begins with.
    rows
        One an engine.
    """

    gpu_blocks: int
    basis: Basis
    ours: HitFigure
    rows: tuple[EngineRow, ...]

    def engine(self, name: str) -> EngineRow:
        """Return the row of one engine.

        Raises
        ------
        UnknownNameError
            If it is not there.
        """
        preset = find_engine(name)
        return next(row for row in self.rows if row.engine is preset)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row an engine and step; `attrs` says what the figures rest on."""
        rows = [
            (
                row.engine.name, step.rule, step.value, step.figure["hits"],
                step.figure["total"], step.figure["rate"], step.delta,
            )
            for row in self.rows
            for step in row.steps
        ]  # fmt: skip
        attrs = self.basis.attrs() | {"gpu_blocks": self.gpu_blocks}
        return tidy_frame(STEP_COLUMNS, rows, attrs)

    def to_dict(self) -> dict[str, object]:
        """Return everything, the sources of the rules too, as JSON values."""
        return self.basis.attrs() | {
            "gpu_blocks": self.gpu_blocks,
            "block": self.ours,
            "engines": [
                row.engine.to_dict()
                | {
                    "pool": row.pool,
                    "reported": row.reported,
                    "steps": [step.to_dict() for step in row.steps],
                }
                for row in self.rows
            ],
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the way from our figure to each engine's, step by step."""
        from kvsim.engines.plots import plot_waterfalls

        return plot_waterfalls(self, ax=ax)

    @property
    def title(self) -> str:
        """One line that says what this is."""
        return f"{self.basis.trace}, {self.gpu_blocks:,} GPU blocks: what engines would report"

    @property
    def head(self) -> tuple[str, ...]:
        """The names of the columns of `table_rows`."""
        return ("", *(row.engine.name for row in self.rows))

    def table_rows(self) -> list[tuple[str, ...]]:
        """Return the waterfalls as text, from the top down: rates, and steps in points."""
        lines: list[tuple[str, ...]] = [(OURS, *(percent(self.ours["rate"]) for _ in self.rows))]
        for index, (name, shown) in enumerate(_RULE_NAMES.items(), start=1):
            lines.append((shown, *(points(row.steps[index].delta) for row in self.rows)))
            if name == _LAST_OF_CACHE:
                lines.append(("cache hits", *(percent(row.pool["rate"]) for row in self.rows)))
        lines.append(("would report", *(percent(row.reported["rate"]) for row in self.rows)))
        most = (_RULE_NAMES[row.largest.rule] if row.largest else "nothing" for row in self.rows)
        return [*lines, ("most by", *most)]

    def notes(self) -> list[str]:
        """Return what a reader of the table must know."""
        found = [
            f"{self.basis.caption}; all engines with blocks of that size",
            "from the top down: points of hit rate, one rule after another; cache hits: hit blocks"
            " of block references, every key of the trace a block",
        ]
        for row in self.rows:
            changed = [f"{step.rule} {step.value}" for step in row.steps[1:] if step.delta]
            if changed:
                found.append(f"{row.engine.name} {row.engine.version}: {'; '.join(changed)}")
        return found

    def __repr__(self) -> str:
        return f"<Explanation {self.title}>"

    def _repr_html_(self) -> str:
        return html_table(self.title, self.head, self.table_rows(), self.notes())


_RULE_NAMES: Final = {
    "evicts": "evicts",
    "tail": "tail",
    "keys": "keys",
    "unit": "unit",
    "last_token": "last token",
}
"""The rules in the order in which they are changed -> names for people."""

_LAST_OF_CACHE: Final = "tail"
"""The last rule that changes what is hit; those after it change what is counted."""


@paused_collector()
def explain(
    trace: str | PathLike[str] | Trace,
    *,
    gpu_blocks: int,
    warmup: float = 0.0,
    engines: Iterable[str] = tuple(ENGINES),
) -> Explanation:
    """Return what engines would report on a trace at one capacity, and why.

    Parameters
    ----------
    trace
        Path of a trace file, `"sample:chat"`, or a trace that is loaded: best as its format gives
        it, with a key for a last block that is not full.
    gpu_blocks
        The capacity, in blocks of the trace.
    warmup
        Share of the requests, from the first, whose hits are not counted.
    engines
        Names from `ENGINES`.

    Raises
    ------
    UserError
        If there is no such engine, the capacity or the warm-up cannot be used, or the keys of the
        trace do not name their whole prefix.
    """
    check_capacity(gpu_blocks, name="gpu_blocks")
    if isinstance(engines, str) or not (presets := [find_engine(name) for name in engines]):
        raise ConfigError(f"engines must be a list of names, such as ['vllm'], not {engines!r}")
    trace = open_trace(trace)
    if not trace.num_references:
        raise UserError(f"trace {trace.name} has no blocks: there is nothing to explain")
    counter = _Counter(trace, int(gpu_blocks), warmup)
    return Explanation(
        gpu_blocks=int(gpu_blocks),
        basis=Tally(trace, warmup).basis,
        ours=counter.figure(_State(keys=trace.partial)),
        rows=tuple(_row(preset, counter, trace.partial) for preset in presets),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """A value of each rule; the defaults are ours."""

    keys: PartialRule
    evicts: Evicts = Evicts.BLOCK
    tail: Tail = Tail.OLD
    unit: Unit = Unit.BLOCKS
    last_token: LastToken = LastToken.COUNTED


class _Counter:
    """Hits of one trace at one capacity under any rules; each replay is done once."""

    def __init__(self, trace: Trace, capacity: int, warmup: float) -> None:
        self._traces = {trace.partial: trace}
        if trace.partial is PartialRule.COUNT:
            self._traces[PartialRule.NEVER] = without_partial_blocks(trace)
        self._capacity, self._warmup = capacity, warmup
        self._runs: dict[tuple[PartialRule, Evicts, Tail], Sequence[int]] = {}

    def figure(self, state: _State) -> HitFigure:
        # A trace without keys for partial blocks cannot be given any.
        trace = self._traces.get(state.keys) or self._traces[PartialRule.NEVER]
        key = (trace.partial, state.evicts, state.tail)
        if key not in self._runs:
            self._runs[key] = runs_of(trace, state.evicts, state.tail, self._capacity)
        definition = "block"
        if state.unit is Unit.TOKENS:
            is_whole = state.last_token is LastToken.COUNTED
            definition = "prefix_token" if is_whole else "prefix_token_usable"
        return Tally(trace, self._warmup).counts(self._runs[key])[definition].figure()


def without_partial_blocks(trace: Trace) -> Trace:
    """Return the trace as `PartialRule.NEVER` reads it: full blocks only have keys."""
    size = trace.block_size
    requests = tuple(
        replace(
            each,
            block_keys=each.block_keys[: each.num_input_tokens // size],
            next_use_at=None,
        )
        for each in trace.requests
    )
    return replace(trace, requests=requests, partial=PartialRule.NEVER)


def _row(engine: EnginePreset, counter: _Counter, keys: PartialRule) -> EngineRow:
    state = _State(keys=keys)
    figure = counter.figure(state)
    steps = [Step(rule=OURS, value=f"evicts {Evicts.BLOCK}", figure=figure, delta=0.0)]
    changes: dict[str, _State] = {}
    for name in _RULE_NAMES:
        state = replace(state, **{name: engine.rules[name].value})  # type: ignore[arg-type]
        changes[name] = state
    for name, changed in changes.items():
        before, figure = figure, counter.figure(changed)
        steps.append(
            Step(
                rule=name,
                value=engine.rules[name].value.value,
                figure=figure,
                delta=figure["rate"] - before["rate"],
            )
        )
    pool = next(step.figure for step in steps if step.rule == _LAST_OF_CACHE)
    return EngineRow(engine=engine, steps=tuple(steps), pool=pool, reported=figure)


def points(delta: float) -> str:
    """Return a difference of two rates in points, for people."""
    if not delta:
        return "0"
    # Hardly anything is not nothing: -0.004 rather than -0.00.
    return f"{100 * delta:+.2f}" if abs(delta) >= 5e-5 else f"{100 * delta:+.1g}"
