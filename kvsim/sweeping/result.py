"""What a sweep returns: one tidy frame, comparisons of policies, plots, and files of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import pandas as pd

from kvsim.analysis.metrics import DEFINITIONS
from kvsim.errors import ConfigError, UnknownNameError
from kvsim.saving import new_files, write_json
from kvsim.sweeping.cells import CellStatus, Figure
from kvsim.sweeping.compare import (
    CONFIDENCE,
    NUM_RESAMPLES,
    Interval,
    paired_interval,
    resampling_units,
)
from kvsim.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from os import PathLike

    from matplotlib.axes import Axes

    from kvsim.replay_config import JsonValue
    from kvsim.sweeping.cells import Cell, CellResult
    from kvsim.sweeping.plan import Plan

PLACE_COLUMNS: Final = {
    "trace": "string",
    "config": "string",
    "gpu_blocks": "Int64",
    "cpu_blocks": "Int64",
    "seed": "int64",
}
"""Where policies are compared: columns of all frames of a sweep -> dtype."""

FRAME_COLUMNS: Final = PLACE_COLUMNS | {
    "policy": "string",
    "status": "string",
    "message": "string",
    "figure": "string",
    "unit": "string",
    "tier": "string",
    "hits": "Int64",
    "total": "Int64",
    "value": "Float64",
    "cell": "string",
}
"""Column of `SweepResult.frame` -> dtype. Capital letters: may be missing."""

COMPARISON_COLUMNS: Final = PLACE_COLUMNS | {
    "policy": "string",
    "baseline": "string",
    "policy_rate": "Float64",
    "baseline_rate": "Float64",
    "difference": "Float64",
    "ci_low": "Float64",
    "ci_high": "Float64",
    "num_requests": "int64",
    "num_units": "int64",
    "unit": "string",
}
"""Column of a comparison -> dtype."""

_COMPARED: Final = "prefix_token"
_NO_FIGURE: Final = (None,) * len(Figure._fields)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SweepResult:
    """A finished sweep. Made by `kvsim.sweep`; docs/sweeps.md describes its columns.

    Parameters
    ----------
    plan
        The cells in the order of the sweep's lists, and the traces they read.
    results
        What came of each cell, by its digest.
    """

    plan: Plan
    results: Mapping[str, CellResult]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row for each cell and figure; a cell that failed is one row without a figure.

        `attrs` say what the figures rest on: version, settings, traces, definitions.
        """
        rows: list[tuple[object, ...]] = []
        for cell in self.plan.cells:
            result = self.results[cell.digest]
            head = (*_place(cell), cell.config.policy, result.status.value, result.message)
            figures = result.figures or (_NO_FIGURE,)
            rows += [(*head, *figure, cell.digest) for figure in figures]
        frame = _frame(rows, FRAME_COLUMNS)
        frame.attrs.update(self._attrs())
        return frame

    @property
    def num_cells(self) -> dict[str, int]:
        """How many cells there are, and how they ended; cells with equal settings are one."""
        ends = Counter(result.status for result in self.results.values())
        return {"total": len(self.results)} | {end.value: ends[end] for end in CellStatus}

    @property
    def failures(self) -> tuple[str, ...]:
        """One line for each cell that has no figures: which, and why."""
        return tuple(
            f"{_title(cell)}: {self.results[cell.digest].message}"
            for cell in self.plan.cells
            if self.results[cell.digest].status is CellStatus.FAILED
        )

    @property
    def policies(self) -> list[str]:
        """The policies, in the order of the sweep."""
        return list(dict.fromkeys(cell.config.policy for cell in self.plan.cells))

    @property
    def traces(self) -> list[str]:
        """The traces, as the sweep names them, in its order."""
        return list(dict.fromkeys(cell.trace for cell in self.plan.cells))

    @property
    def short_names(self) -> dict[str, str]:
        """Trace -> what a table or a plot calls it: without its folder, if that is no loss."""
        short = {trace: PurePath(trace).name for trace in self.traces}
        return short if len(set(short.values())) == len(short) else {each: each for each in short}

    def rates(self, definition: str = _COMPARED) -> pd.DataFrame:
        """Return one hit rate of both tiers: a row for each place, a column for each policy.

        Raises
        ------
        UnknownNameError
            If there is no such definition of a hit rate.
        """
        if definition not in DEFINITIONS:
            raise UnknownNameError("definition", definition, DEFINITIONS)
        rows: dict[tuple[object, ...], dict[str, float | None]] = {}
        for cell in self.plan.cells:
            found = [
                figure.value
                for figure in self.results[cell.digest].figures
                if (figure.name, figure.tier) == (definition, "all")
            ]
            rates = rows.setdefault(_place(cell), dict.fromkeys(self.policies))
            rates[cell.config.policy] = found[0] if found else None
        columns = PLACE_COLUMNS | dict.fromkeys(self.policies, "Float64")
        frame = _frame([(*place, *rates.values()) for place, rates in rows.items()], columns)
        frame.attrs.update(self._attrs(), figure=definition)
        return frame

    def compare(
        self,
        policy: str,
        *,
        baseline: str,
        seed: int = 0,
        num_resamples: int = NUM_RESAMPLES,
        confidence: float = CONFIDENCE,
    ) -> pd.DataFrame:
        """Return by how much `policy` hits more than `baseline`, and how sure that is.

        One row for each trace, variant, capacity and seed. The rate is `prefix_token` of both
        tiers, the requests are those after the warm-up, paired; the interval is from a bootstrap
        over sessions, or over runs of requests where a trace has none. It answers: had other
        sessions like these come, would it be the same policy? It does not replay them, so it says
        nothing about other loads or capacities.

        Parameters
        ----------
        seed, num_resamples, confidence
            Of the bootstrap; see `kvsim.sweeping.compare`.

        Raises
        ------
        UnknownNameError
            If the sweep has no such policy.
        ConfigError
            If `seed`, `num_resamples` or `confidence` is impossible.
        """
        by_place: dict[str, dict[tuple[object, ...], Cell]] = {policy: {}, baseline: {}}
        for name in (policy, baseline):
            if name not in self.policies:
                raise UnknownNameError("policy of this sweep", name, self.policies)
        for cell in self.plan.cells:
            if cell.config.policy in by_place:
                by_place[cell.config.policy][_place(cell)] = cell
        options = {"seed": seed, "num_resamples": num_resamples, "confidence": confidence}
        rows = []
        for place, cell in by_place[policy].items():
            other = by_place[baseline].get(place)
            figures = None if other is None else self._compared(cell, other, **options)  # type: ignore[arg-type]
            rows.append((*place, policy, baseline, *(figures or (*[None] * 5, 0, 0, None))))
        frame = _frame(rows, COMPARISON_COLUMNS)
        frame.attrs.update(self._attrs(), figure=_COMPARED, bootstrap=options)
        return frame

    def _compared(
        self, cell: Cell, other: Cell, *, seed: int, num_resamples: int, confidence: float
    ) -> tuple[object, ...] | None:
        one, two = self.results[cell.digest], self.results[other.digest]
        if CellStatus.FAILED in (one.status, two.status):
            return None
        trace = self.plan.traces[cell.view]
        measured = slice(one.num_warmup, len(one.hit_tokens))
        tokens = trace.num_input_tokens[measured]
        sessions = None if trace.sessions is None else trace.sessions[measured]
        units = resampling_units(len(tokens), sessions)
        hits, baseline_hits = one.hit_tokens[measured], two.hit_tokens[measured]
        interval: Interval = paired_interval(
            hits,
            baseline_hits,
            tokens,
            units.of_request,
            seed=seed,
            num_resamples=num_resamples,
            confidence=confidence,
        )
        total = int(tokens.sum()) or 1
        return (
            int(hits.sum()) / total,
            int(baseline_hits.sum()) / total,
            *interval[:3],
            len(tokens),
            interval.num_units,
            units.kind,
        )

    def plot(
        self, *, ax: Axes | Sequence[Axes] | None = None, definition: str = _COMPARED
    ) -> tuple[Axes, ...]:
        """Draw the hit rate over the capacity, a line a policy; return the axes, one a trace.

        Parameters
        ----------
        ax
            Axes to draw into, as many as there are traces; one need not be in a list.

        Raises
        ------
        ConfigError
            If there are more or fewer axes than traces.
        UnknownNameError
            If there is no such definition of a hit rate.
        """
        from kvsim.sweeping.plots import new_panels, plot_rates

        rates = self.rates(definition)
        num_traces = len(self.traces)
        axes = new_panels(num_traces) if ax is None else _as_tuple(ax)
        if len(axes) != num_traces:
            raise ConfigError(
                f"ax must have one Axes for each trace, {num_traces} in all, not {len(axes)}"
            )
        for trace, panel in zip(self.traces, axes, strict=True):
            own = rates[rates["trace"] == trace]
            plot_rates(own, policies=self.policies, definition=definition, ax=panel)
            panel.set_title(self.short_names[trace], loc="left", fontsize=11, pad=20)
        return axes

    def summary(self) -> dict[str, JsonValue]:
        """Return what the table rests on and where it comes from: what `sweep.json` has."""
        made = [result.provenance for result in self.results.values()]
        seconds = sum(float(str(each.get("run_s", 0))) for each in made)
        return self._attrs() | {
            "cells": dict(self.num_cells),
            "failures": list(self.failures),
            "provenance": {
                "git_commits": _unlike(each.get("git_commit") for each in made),
                "python_versions": _unlike(each.get("python_version") for each in made),
                "run_s": round(seconds, 6),
            },
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Write sweep.parquet and sweep.json to a folder; never half, and nothing if this raises.

        Raises
        ------
        UserError
            If the folder cannot be written to.
        """
        with new_files(path, last="sweep.json") as folder:
            self.frame.to_parquet(folder / "sweep.parquet", index=False)
            write_json(folder / "sweep.json", self.summary())

    def _attrs(self) -> dict[str, JsonValue]:
        variants: dict[str, JsonValue] = {}
        traces: dict[str, JsonValue] = {}
        for cell in self.plan.cells:
            settings = cell.config.to_dict()
            for axis in ("policy", "seed", "gpu_blocks", "cpu_blocks"):
                del settings[axis]
            variants.setdefault(cell.variant, settings)
            facts = self.plan.traces[cell.view]
            traces.setdefault(
                cell.trace,
                {
                    "block_size": facts.block_size,
                    "num_requests": facts.num_requests,
                    "partial": facts.partial,
                    "sha256": facts.sha256,
                },
            )
        return {
            "clock": "none" if self.plan.cells[0].config.instant else "virtual",
            "configs": variants,
            "definitions": dict(DEFINITIONS),
            "kvsim_version": __version__,
            "traces": traces,
        }

    def __repr__(self) -> str:
        counts = self.num_cells
        policies = ", ".join(self.policies)
        return f"<SweepResult {counts['done']} of {counts['total']} cells done; {policies}>"

    def _repr_html_(self) -> str:
        shown = self.rates()
        for policy in self.policies:
            shown[policy] = [_percent(rate) for rate in shown[policy]]
        failed = "".join(f"<li>{escape(line)}</li>" for line in self.failures)
        note = f"<ul>{failed}</ul>" if failed else ""
        return f"<p>{escape(repr(self))}: {_COMPARED}</p>{shown.to_html(index=False)}{note}"


def _place(cell: Cell) -> tuple[object, ...]:
    config = cell.resolved
    return (cell.trace, cell.variant, config.gpu_blocks, config.cpu_blocks, config.seed)


def _title(cell: Cell) -> str:
    trace, variant, gpu_blocks, cpu_blocks, seed = _place(cell)
    return (
        f"{cell.config.policy} on {trace}, config {variant}, {gpu_blocks} GPU + {cpu_blocks} CPU"
        f" blocks, seed {seed}"
    )


def _percent(rate: object) -> str:
    return "failed" if rate is pd.NA else f"{rate:.2%}"


def _as_tuple(ax: Axes | Sequence[Axes]) -> tuple[Axes, ...]:
    from matplotlib.axes import Axes as SomeAxes

    return (ax,) if isinstance(ax, SomeAxes) else tuple(ax)


def _unlike(values: Iterable[JsonValue]) -> list[JsonValue]:
    return [*sorted({str(value) for value in values if value is not None})]


def _frame(rows: Sequence[tuple[object, ...]], columns: Mapping[str, str]) -> pd.DataFrame:
    values = list(zip(*rows, strict=True))
    return pd.DataFrame(
        {
            name: pd.Series(list(column), dtype=dtype)
            for (name, dtype), column in zip(columns.items(), values, strict=True)
        }
    )
