"""What a split run returns: figures, frames, plots, and files of all of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypedDict

from kvsim.analysis.metrics import latency_ms
from kvsim.core.sequence import Status
from kvsim.core.sharding import shard
from kvsim.errors import UserError
from kvsim.html import html_notes, html_rows, html_run
from kvsim.saving import new_files, write_json, write_lines
from kvsim.splitting.frames import parts_ns, ttft_ns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    import pandas as pd
    from matplotlib.axes import Axes

    from kvsim.analysis.steps import RunLog
    from kvsim.events import Event
    from kvsim.provenance import Provenance
    from kvsim.replay_config import ReplayConfig
    from kvsim.result_parts import TraceFacts
    from kvsim.splitting.running import SplitOutcome
    from kvsim.splitting.settings import SplitSettings

_NS_PER_S: Final = 10**9
_FULL: Final = 0.9
"""Share of the time that a wire must be full, if all its bytes passed at its speed, to be named."""


class TtftParts(TypedDict):
    """Means in milliseconds, of the requests that have a time to first token; they add up to it."""

    queue: float
    compute: float
    exposed_transfer: float


class LinkFigures(TypedDict):
    """A wire between instances. `utilisation` is its bytes, over what passes in the whole run."""

    bytes: int
    bytes_per_second: int
    utilisation: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SplitResult:
    """A finished split run. Made by `kvsim.split`; docs/split.md describes every figure.

    Parameters
    ----------
    config, settings
        All settings as they were used: of each instance, and of the split.
    outcome
        The records.
    clock
        "virtual", or "wall" for real tensors.
    notes
        What a reader of the figures should know.
    provenance
        Where the result comes from.
    """

    config: ReplayConfig
    settings: SplitSettings
    trace: TraceFacts
    outcome: SplitOutcome
    clock: str
    notes: tuple[str, ...]
    provenance: Provenance

    # -- figures

    @property
    def num_requests(self) -> dict[str, int]:
        """How many requests ended in each way."""
        ends = Counter(str(each.status) for each in self.outcome.handoffs)
        ways = (Status.FINISHED, Status.FAILED, Status.REFUSED, Status.CANCELLED)
        return {str(way): ends[str(way)] for way in ways}

    @cached_property
    def ttft_parts_ms(self) -> TtftParts | None:
        """Where the time to first token goes; None if no request has one."""
        parts = [found for each in self.outcome.handoffs if (found := parts_ns(each)) is not None]
        if not parts:
            return None
        queue, compute, exposed = (
            sum(column) / len(parts) / 10**6 for column in zip(*parts, strict=True)
        )
        return TtftParts(queue=queue, compute=compute, exposed_transfer=exposed)

    @cached_property
    def ttft_ms(self) -> dict[str, float] | None:
        """Percentiles and mean of the time to first token; None if there is none."""
        times = (ttft_ns(each) for each in self.outcome.handoffs)
        return latency_ms(time for time in times if time is not None)

    @cached_property
    def hidden_fraction(self) -> float | None:
        """Share of the time of sending that passed while the prompt was computed; None: no sends.

        Of one request: the time during which a send of it was under way before its prompt was
        done, over that and the time from there to the arrival of its last block.
        """
        hidden = exposed = 0
        for each in self.outcome.handoffs:
            if each.num_sends and each.exposed_ns is not None:
                hidden += each.hidden_ns or 0
                exposed += each.exposed_ns
        return hidden / (hidden + exposed) if hidden + exposed else None

    @cached_property
    def block_bytes(self) -> int:
        """Bytes that are sent for a block, all pairs of ranks together."""
        source, target = self.outcome.instances[0], self.outcome.instances[-1]
        slices = shard(source.layout, target.layout)
        heads = sum(each.num_heads for each in slices)
        return -(-source.cost.transfer_bytes(1) * heads // source.layout.heads_per_rank)

    @property
    def bytes_sent(self) -> int:
        """Bytes of the sends that are done."""
        done = sum(each.num_blocks for each in self.outcome.sends if each.outcome == "done")
        return done * self.block_bytes

    @cached_property
    def links(self) -> dict[str, LinkFigures]:
        """The wires between instances that were used, by name."""
        span_ns = max(1, self.outcome.end_at)
        return {
            wire.name: LinkFigures(
                bytes=wire.num_bytes,
                bytes_per_second=wire.bytes_per_second,
                utilisation=wire.num_bytes * _NS_PER_S / wire.bytes_per_second / span_ns,
            )
            for wire in self.outcome.wires
        }

    @property
    def busiest_link(self) -> tuple[str, LinkFigures] | None:
        """The wire that is used most, and its figures."""
        ranked = sorted(self.links.items(), key=lambda item: (-item[1]["utilisation"], item[0]))
        return ranked[0] if ranked else None

    @property
    def is_network_bound(self) -> bool:
        """Whether a wire is full nearly all the time, so that sends queue up behind each other."""
        busiest = self.busiest_link
        return busiest is not None and busiest[1]["utilisation"] >= _FULL

    @property
    def wrong_bytes(self) -> int | None:
        """Bytes that were read and wrong; None where there are no tensors to look at."""
        return None if self.outcome.tensors is None else self.outcome.tensors["wrong_bytes"]

    @property
    def faults(self) -> tuple[str, ...]:
        """What must not be, in words: wrong bytes, and decode that started early."""
        found: list[str] = []
        if self.wrong_bytes:
            found.append(f"{self.wrong_bytes:,} bytes that were read are wrong")
        if self.outcome.num_early_starts:
            found.append(
                f"{self.outcome.num_early_starts:,} requests decoded before their KV was there"
            )
        return tuple(found)

    def summary(self) -> dict[str, object]:
        """Return all figures as JSON values. docs/split.md describes them."""
        failures = Counter(str(each.error) for each in self.outcome.failures)
        return {
            "trace": asdict(self.trace),
            "config": self.config.to_dict(),
            "split": self.settings.to_dict(),
            "clock": self.clock,
            "wrong_bytes": self.wrong_bytes,
            "blocks_checked": (
                None if self.outcome.tensors is None else self.outcome.tensors["blocks_checked"]
            ),
            "early_starts": self.outcome.num_early_starts,
            "requests": self.num_requests,
            "failed_attempts": dict(sorted(failures.items())),
            "ttft_parts_ms": self.ttft_parts_ms,
            "ttft_ms": self.ttft_ms,
            "hidden_fraction": self.hidden_fraction,
            "bytes_sent": self.bytes_sent,
            "links": self.links,
            "network_bound": self.is_network_bound,
            "notes": list(self.notes),
            "provenance": asdict(self.provenance),
        }

    def to_json(self) -> str:
        """Return `summary` as one line of JSON."""
        return json.dumps(self.summary(), sort_keys=True, allow_nan=False)

    @property
    def logs(self) -> tuple[RunLog, ...]:
        """The events of each instance and when they happened. Needs `events=True`.

        Raises
        ------
        UserError
            If they were not kept.
        """
        if not self.outcome.logs:
            raise UserError("the events of this run were not kept: ask for them with events=True")
        return self.outcome.logs

    @property
    def events(self) -> tuple[Sequence[Event], ...]:
        """Every decision of each instance, in order, by its number. Needs `events=True`."""
        return tuple(log.events for log in self.logs)

    # -- frames and plots

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, in the order of the trace."""
        from kvsim.splitting.frames import requests_frame

        return requests_frame(self.outcome.handoffs, clock=self.clock)

    @cached_property
    def sends(self) -> pd.DataFrame:
        """One row for each batch of blocks that was sent."""
        from kvsim.splitting.frames import sends_frame

        return sends_frame(self.outcome.sends, block_bytes=self.block_bytes, clock=self.clock)

    @cached_property
    def pieces(self) -> pd.DataFrame:
        """One row for each piece of a prompt that was computed."""
        from kvsim.splitting.frames import pieces_frame

        return pieces_frame(self.outcome.pieces, clock=self.clock)

    def plot_request(self, request_id: int | None = None, *, ax: Axes | None = None) -> Axes:
        """Draw what became of one request over time; by default the one with the most sends.

        Raises
        ------
        UserError
            If there is no such request, or it never was computed.
        """
        from kvsim.splitting.plots import plot_request

        return plot_request(
            self.requests,
            self.pieces,
            self.sends,
            request_id=request_id,
            caption=self.caption,
            ax=ax,
        )

    def plot_parts(self, *, ax: Axes | None = None) -> Axes:
        """Draw the parts of the time to first token over the length of the prompt."""
        from kvsim.splitting.plots import plot_parts

        return plot_parts(self.requests, caption=self.caption, ax=ax)

    @property
    def caption(self) -> str:
        """What was run, for the caption of a plot."""
        settings = self.settings
        return (
            f"trace {self.trace.name} · {settings.prefill} prefill, {settings.decode} decode,"
            f" {settings.network.name}, {settings.send} · clock: {self.clock}"
            f" · seed {self.config.seed}"
        )

    # -- for people

    @property
    def title(self) -> str:
        """One line that says what was run."""
        settings, trace = self.settings, self.trace
        sizes = [each.layout.num_ranks for each in self.outcome.instances]
        model = self.config.model_shape.name
        return (
            f"{trace.name}: {trace.num_requests:,} requests, {trace.block_size} tokens a block;"
            f" {model}, {settings.prefill} prefill x {sizes[0]} ranks ->"
            f" {settings.decode} decode x {sizes[-1]} ranks over {settings.network.name}"
        )

    def fact_rows(self) -> list[tuple[str, str]]:
        """Return the figures as text: name and value."""
        rows = [
            ("requests", ", ".join(f"{n:,} {end}" for end, n in self.num_requests.items() if n))
        ]
        if self.outcome.failures:
            failures = Counter(str(each.error) for each in self.outcome.failures)
            text = ", ".join(f"{n:,} {error}" for error, n in sorted(failures.items()))
            rows.append(("failed attempts", text))
        if self.ttft_ms is not None:
            text = ", ".join(f"{name} {value:,.1f}" for name, value in self.ttft_ms.items())
            rows.append(("TTFT (ms)", text))
        if self.ttft_parts_ms is not None:
            parts = self.ttft_parts_ms
            rows.append(
                (
                    "mean parts (ms)",
                    f"queue {parts['queue']:,.1f}, compute {parts['compute']:,.1f},"
                    f" exposed transfer {parts['exposed_transfer']:,.3f}",
                )
            )
        sent = f"{self.bytes_sent / 2**30:,.2f} GiB in {len(self.outcome.sends):,} sends"
        if self.hidden_fraction is not None:
            sent += f", {self.hidden_fraction:.1%} of the time hidden behind compute"
        rows.append(("sent", sent))
        if self.busiest_link is not None:
            name, link = self.busiest_link
            rows.append(("busiest link", f"{name}: {link['utilisation']:.1%} of its bandwidth"))
        rows.append(("early starts", f"{self.outcome.num_early_starts:,}"))
        if self.outcome.tensors is not None:
            tensors = self.outcome.tensors
            rows.append(
                (
                    "tensors",
                    f"{tensors['wrong_bytes']:,} wrong bytes in {tensors['blocks_checked']:,}"
                    f" blocks read; {self.config.time_scale:,} x as fast",
                )
            )
        return rows

    def __repr__(self) -> str:
        return f"<SplitResult {self.title}>"

    def _repr_html_(self) -> str:
        return (
            html_run(self.title, clock=self.clock, seed=self.config.seed)
            + html_rows(self.fact_rows(), align="left")
            + html_notes(self.notes)
        )

    # -- files

    def perfetto(self, path: str | PathLike[str]) -> None:
        """Write the run as a timeline that ui.perfetto.dev shows. Needs `events=True`.

        Raises
        ------
        UserError
            If the events were not kept, or the file cannot be written.
        """
        from kvsim.splitting.timeline import split_lines

        lines = split_lines(self.outcome, self.logs, name=self.title, clock=self.clock)
        write_lines(path, lines)

    def save(self, path: str | PathLike[str]) -> None:
        """Write run.json, requests, sends and pieces (Parquet), parts.png and request.png.

        The folder is made if need be; files of these names in it are replaced. Nothing is ever
        half written, and nothing at all if this raises.

        Raises
        ------
        UserError
            If the folder cannot be written to.
        """
        with new_files(path, last="run.json") as folder:
            for name in ("requests", "sends", "pieces"):
                getattr(self, name).to_parquet(folder / f"{name}.parquet", index=False)
            write_json(folder / "run.json", self.summary())
            from kvsim.analysis.plots import save_plot

            save_plot(folder / "parts.png", self.plot_parts)
            save_plot(folder / "request.png", self.plot_request)
