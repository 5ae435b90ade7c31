"""What a replay returns: figures, frames, plots, and files of all of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kvsim.analysis.metrics import (
    DEFINITIONS,
    HitCounts,
    HitFigure,
    count_hits,
    latency_ms,
    num_warmup,
    transfer_figures,
    ttft_ns,
)
from kvsim.analysis.orders import intervention_figures
from kvsim.config import TIER_NAMES
from kvsim.core.sequence import Status
from kvsim.errors import UserError
from kvsim.result_parts import RecordingFigures, TierFigures, TraceFacts, called
from kvsim.saving import new_files, write_json, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    import pandas as pd
    from matplotlib.axes import Axes

    from kvsim.analysis.kv_events import KvEvent
    from kvsim.analysis.metric_names import Totals
    from kvsim.analysis.records import RequestRecord, TransferRecord
    from kvsim.analysis.steps import RunLog
    from kvsim.analysis.timeline import TurnRecord
    from kvsim.backends.setup import TensorFigures
    from kvsim.core.interventions import InterventionRecord
    from kvsim.events import Event
    from kvsim.provenance import Provenance
    from kvsim.replay_config import ReplayConfig


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReplayResult:
    """A finished replay. Made by `kvsim.replay`; docs/results.md describes every figure.

    Parameters
    ----------
    config
        All settings as they were used: no default is left open.
    records, transfer_records
        One a request, in the order of the trace; one a transfer, in the order of the answers.
    clock
        "virtual"; "wall" for one with real tensors, whose times are the machine's and as much
        shorter as `config.time_scale` says; "none" for an instant replay, which has no times and
        keeps no transfers.
    num_preemptions, num_duplicate_blocks
        How often a request lost its blocks to others; blocks computed twice at the same time.
    rank_block_bytes, num_ranks
        Bytes of a block on each rank, K and V, and how many ranks there are.
    notes
        What a reader of the figures should know.
    events, turns
        Every decision of the core in order, and the turns of the engine that they were made in;
        None unless asked for. An instant replay has no turns.
    provenance
        Where the result comes from. In virtual time nothing else differs between two runs.
    tensors
        What became of the bytes of real tensors; None if there were none.
    recording
        The turns of the engine that were recorded; None if they were not.
    interventions
        What became of the orders of an operator, in the order of their times.
    """

    config: ReplayConfig
    trace: TraceFacts
    records: tuple[RequestRecord, ...]
    transfer_records: tuple[TransferRecord, ...]
    clock: str
    num_preemptions: int
    num_duplicate_blocks: int
    rank_block_bytes: int
    num_ranks: int
    notes: tuple[str, ...]
    provenance: Provenance
    events: list[Event] | None = None
    turns: list[TurnRecord] | None = None
    tensors: TensorFigures | None = None
    recording: RecordingFigures | None = None
    interventions: tuple[InterventionRecord, ...] = ()

    # -- figures

    @property
    def hits(self) -> dict[str, HitFigure]:
        """The hit rate by each definition, over all tiers, without the warm-up."""
        return {name: counts.figure() for name, counts in self._hit_counts.items()}

    @property
    def tiers(self) -> dict[str, TierFigures]:
        """The same by tier; without a CPU tier it has 0 blocks, and a third is not named."""
        measured = self.records[self._num_warmup :]
        in_flight = sum(record.num_in_flight_hit_blocks for record in measured)
        return {
            tier: TierFigures(
                capacity_blocks=self._sizes[tier],
                hits={name: each.figure(tier=tier) for name, each in self._hit_counts.items()},
                in_flight_hit_blocks=0 if index else in_flight,
            )
            for index, tier in enumerate(self._sizes)
        }

    @property
    def _sizes(self) -> dict[str, int]:
        """Capacity of each tier by name; of the third only if there is one."""
        config = self.config
        sizes = (config.gpu_blocks or 0, config.cpu_blocks or 0, config.disk_blocks or 0)
        return dict(zip(TIER_NAMES, sizes if sizes[2] else sizes[:2], strict=False))

    @property
    def num_requests(self) -> dict[str, int]:
        """How many requests there were, and how they ended."""
        ends = Counter(record.status for record in self.records)
        ways = (Status.FINISHED, Status.REFUSED, Status.CANCELLED, Status.FAILED)
        return {"total": len(self.records)} | {status.value: ends[status] for status in ways}

    @cached_property
    def ttft_ms(self) -> dict[str, float] | None:
        """Time to first token in milliseconds: p50, p90, p99 and mean; None if instant."""
        return latency_ms(ttft_ns(self.records))

    @cached_property
    def swaps(self) -> dict[str, dict[str, int | float]] | None:
        """The transfers in each direction; None if instant."""
        if self.config.instant:
            return None
        return transfer_figures(self.transfer_records, self.rank_block_bytes * self.num_ranks)

    @cached_property
    def _num_warmup(self) -> int:
        return num_warmup(self.config.warmup, len(self.records))

    @cached_property
    def _hit_counts(self) -> dict[str, HitCounts]:
        return count_hits(self.records[self._num_warmup :], self.trace.block_size)

    def summary(self) -> dict[str, object]:
        """Return the figures as JSON values: what `kvsim replay --json` prints."""
        return {
            "clock": self.clock,
            "config": self.config.to_dict(),
            "definitions": dict(DEFINITIONS),
            "duplicate_blocks": self.num_duplicate_blocks,
            "hits": self.hits,
            "interventions": [intervention_figures(each) for each in self.interventions],
            "notes": list(self.notes),
            "preemptions": self.num_preemptions,
            "provenance": asdict(self.provenance),
            "recording": self.recording,
            "requests": self.num_requests,
            "rules": {"partial": self.trace.partial, "swap_in": str(self.config.swap_in)},
            "tensors": self.tensors,
            "tiers": self.tiers,
            "trace": asdict(self.trace),
            "transfers": self.swaps,
            "ttft_ms": self.ttft_ms,
            "warmup": {"requests": self._num_warmup, "share": self.config.warmup},
        }

    def to_json(self) -> str:
        """Return the summary as one line of JSON with sorted keys."""
        return json.dumps(self.summary(), sort_keys=True, allow_nan=False)

    @property
    def faults(self) -> tuple[str, ...]:
        """What must not be: wrong bytes, or decisions that differ from the recorded ones."""
        found = []
        if self.tensors is not None and self.tensors["wrong_bytes"]:
            found.append(f"{self.tensors['wrong_bytes']:,} bytes that were read are wrong")
        if self.recording is not None and self.recording["identical"] is False:
            found.append("the recording does not lead to the same decisions again")
        return tuple(found)

    # -- frames and plots

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, in the order of the trace."""
        from kvsim.analysis.frames import requests_frame

        return requests_frame(
            self.records,
            block_size=self.trace.block_size,
            num_warmup=self._num_warmup,
            clock=self.clock,
        )

    @cached_property
    def transfers(self) -> pd.DataFrame:
        """One row a transfer, in the order in which they were answered."""
        from kvsim.analysis.frames import transfers_frame

        return transfers_frame(
            self.transfer_records,
            rank_block_bytes=self.rank_block_bytes,
            num_ranks=self.num_ranks,
            clock=self.clock,
        )

    @property
    def log(self) -> RunLog:
        """The events of the run and when they happened. Needs `events=True` and a clock."""
        from kvsim.analysis.steps import RunLog

        if self.events is None or self.turns is None:
            raise UserError(
                "an instant replay has no clock: nothing happens at any time"
                if self.config.instant
                else "the events of this run were not kept: ask for them with events=True"
            )
        return RunLog(
            events=self.events,
            turns=self.turns,
            requests=[record.request for record in self.records],
            tier_blocks=self.config.tier_blocks,
            clock=self.clock,
        )

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row a Forward, in the order in which they were submitted. Needs `events=True`."""
        from kvsim.analysis.steps import steps_frame

        return steps_frame(self.log)

    @cached_property
    def residency(self) -> pd.DataFrame:
        """What the blocks of each tier are used for over time. Needs `events=True`."""
        from kvsim.analysis.steps import residency_frame

        return residency_frame(self.log)

    def metrics(self, *, names: str = "kvsim", window: int = 10_000) -> dict[str, int | float]:
        """Return the counters and gauges at the end of the run, by name (docs/metrics.md).

        Parameters
        ----------
        names
            Whose names they have: "kvsim", "fastdeploy" or "vllm".
        window
            Requests after which the ratios of the window begin anew.
        """
        from kvsim.analysis.metric_names import metrics

        return metrics(self._totals(window), names)

    def gauges(self, *, names: str = "kvsim", window: int = 10_000) -> pd.DataFrame:
        """Return the gauges at every Forward, a column each. Needs `events=True`."""
        from kvsim.analysis.gauges import gauges_frame

        return gauges_frame(self._totals(window), self.steps, names, window)

    def hit_windows(self, *, window: int = 10_000) -> pd.DataFrame:
        """Return one row for each window of so many requests: what they asked for and found."""
        from kvsim.analysis.windows import queries, windows, windows_frame

        found = windows(queries(self.records, self.trace.block_size), window)
        return windows_frame(found, num_tiers=len(TIER_NAMES), clock=self.clock)

    def _totals(self, window: int) -> Totals:
        from kvsim.analysis.metric_names import totals_of

        return totals_of(
            self.records,
            block_size=self.trace.block_size,
            window=window,
            tier_blocks=self.config.tier_blocks,
            events=self.events,
        )

    def kv_events(self) -> Iterator[KvEvent]:
        """Yield what a router would be told of the cache's contents, in vLLM's terms.

        Raises
        ------
        UserError
            If the events were not kept.
        """
        from kvsim.analysis.kv_events import kv_events_of

        return kv_events_of(self.events, self.turns, self.records, self.trace.block_size)

    def perfetto(self, path: str | PathLike[str]) -> None:
        """Write the run as a timeline that ui.perfetto.dev shows. Needs `events=True`."""
        from kvsim.analysis.perfetto import perfetto_lines

        lines = perfetto_lines(self.log, self.records, num_ranks=self.num_ranks, name=self.title)
        write_lines(path, lines)

    def plot_ttft(self, *, ax: Axes | None = None) -> Axes:
        """Draw how the time to first token is distributed; return the axes.

        Raises
        ------
        UserError
            If there is no such time: the replay was instant.
        """
        from kvsim.analysis.plots import plot_ttft

        if self.ttft_ms is None:
            raise UserError("no request has a time to first token: an instant replay has no clock")
        return plot_ttft(self.requests, caption=self.caption, ax=ax)

    def plot_hits(self, *, ax: Axes | None = None) -> Axes:
        """Draw the share of input tokens that hit, by tier, over the time of arrival."""
        from kvsim.analysis.plots import plot_hits

        return plot_hits(
            self.requests, block_size=self.trace.block_size, caption=self.caption, ax=ax
        )

    @property
    def caption(self) -> str:
        """What was replayed, for the caption of a plot."""
        config = self.config
        sizes = " + ".join(f"{size:,} {called(tier)}" for tier, size in self._sizes.items())
        return (
            f"trace {self.trace.name} · {config.policy} · {sizes} blocks of {self.trace.block_size}"
            f" tokens · clock: {self.clock} · seed {config.seed}"
        )

    # -- for people

    @property
    def title(self) -> str:
        """One line that says what was replayed."""
        trace, config = self.trace, self.config
        names = {
            name: value if isinstance(value, str) else value.name
            for name, value in (("model", config.model), ("hardware", config.hardware))
        }
        return (
            f"{trace.name}: {trace.num_requests:,} requests, {trace.block_size} tokens a block;"
            f" {config.policy}, {names['model']} on {names['hardware']}"
        )

    @property
    def hit_heads(self) -> tuple[str, ...]:
        """The heads of the table of hits."""
        return ("hits", *map(called, self._sizes), "of", "rate")

    def hit_rows(self) -> list[tuple[str, ...]]:
        """Return the table of hits as text, under `hit_heads`."""
        from kvsim.result_text import hit_rows

        return hit_rows(self._hit_counts, tuple(self._sizes))

    def fact_rows(self) -> list[tuple[str, str]]:
        """Return the other figures as text: name and value."""
        from kvsim.result_text import fact_rows

        return fact_rows(self, self._sizes, num_warmup=self._num_warmup)

    def __repr__(self) -> str:
        rate = self.hits["prefix_token"]["rate"]
        return f"<ReplayResult {self.title}; prefix_token {rate:.2%}>"

    def _repr_html_(self) -> str:
        from kvsim.result_text import html

        return html(self)

    # -- files

    def save(self, path: str | PathLike[str]) -> None:
        """Write run.json, requests.parquet, transfers.parquet, hits.png and ttft.png to a folder.

        The folder is made if need be; files of these names in it are replaced. Nothing is ever
        half written, and nothing at all if this raises. An instant replay has no ttft.png.

        Raises
        ------
        UserError
            If the folder cannot be written to.
        """
        with new_files(path, last="run.json") as folder:
            self.requests.to_parquet(folder / "requests.parquet", index=False)
            self.transfers.to_parquet(folder / "transfers.parquet", index=False)
            write_json(folder / "run.json", self.summary())
            from kvsim.analysis.plots import save_plot

            save_plot(folder / "hits.png", self.plot_hits)
            if self.ttft_ms is not None:
                save_plot(folder / "ttft.png", self.plot_ttft)
