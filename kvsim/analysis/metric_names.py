"""Counters and gauges of a run under the names of kvsim, FastDeploy and vLLM.

docs/metrics.md is made from the same table; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from kvsim.analysis.occupancy import BlockUse, Occupancy
from kvsim.analysis.windows import WindowFigures, queries, windows
from kvsim.core.sequence import Status
from kvsim.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.analysis.records import RequestRecord
    from kvsim.analysis.windows import Query
    from kvsim.events import Event

Number: TypeAlias = int | float

NAMES: Final = ("kvsim", "fastdeploy", "vllm")
"""Whose names metrics can have."""

_S_NS: Final = 10**9


class Kind(StrEnum):
    """How a metric behaves over time; the names are those of the Prometheus text format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"
    """Two numbers: the sum of what was observed (`_sum`), and how often (`_count`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What the metrics are computed from.

    Parameters
    ----------
    records
        All requests.
    asked
        Their queries (`kvsim.analysis.windows.queries`).
    window
        The window of queries at the end of the run.
    tier_blocks
        Blocks of each tier.
    num_free_blocks
        Of each tier at the end of the run; None if the run kept no events.
    """

    records: Sequence[RequestRecord]
    asked: Sequence[Query]
    window: WindowFigures
    tier_blocks: tuple[int, ...]
    num_free_blocks: tuple[int, ...] | None

    def hit_tokens(self, *tiers: int) -> int:
        """Return the tokens found in these tiers."""
        return sum(query.num_hit_tokens[tier] for query in self.asked for tier in tiers)

    @property
    def lower(self) -> range:
        """The tiers below the GPU, as far as queries can hit there."""
        return range(1, len(self.window.num_hit_tokens))


class Metric(NamedTuple):
    """One row of the table: a name of kvsim and those of others for the same, or nearly the same.

    `value` returns None where the run does not know; `note` says where the others differ.
    """

    name: str
    kind: Kind
    fastdeploy: str | None
    vllm: str | None
    meaning: str
    note: str
    value: Callable[[Totals], Number | tuple[Number, int] | None]

    def name_in(self, names: str) -> str | None:
        """Return the name in one of `NAMES`; None if there it has none."""
        return {"kvsim": self.name, "fastdeploy": self.fastdeploy, "vllm": self.vllm}[names]


def _spans(
    start: Callable[[RequestRecord], int | None], end: Callable[[RequestRecord], int | None]
) -> Callable[[Totals], tuple[Number, int]]:
    """Return a function for the sum of some times, in seconds, and how many there are."""

    def summary(totals: Totals) -> tuple[Number, int]:
        pairs = [(start(record), end(record)) for record in totals.records]
        spans = [b - a for a, b in pairs if a is not None and b is not None]
        return sum(spans) / _S_NS, len(spans)

    return summary


def _num_with(*statuses: Status) -> Callable[[Totals], int]:
    return lambda totals: sum(record.status in statuses for record in totals.records)


def _free_blocks(totals: Totals) -> int | None:
    return None if totals.num_free_blocks is None else totals.num_free_blocks[0]


def _free_share(totals: Totals) -> float | None:
    free = _free_blocks(totals)
    return None if free is None else free / totals.tier_blocks[0]


def _usage(totals: Totals) -> float | None:
    free = _free_share(totals)
    return None if free is None else 1 - free


METRICS: Final = (
    Metric(
        "kvsim_requests_total", Kind.COUNTER, "fastdeploy:requests_number", None,
        "requests that arrived", "",
        lambda totals: len(totals.records),
    ),
    Metric(
        "kvsim_requests_finished_total", Kind.COUNTER,
        "fastdeploy:request_success_total", "vllm:request_success_total",
        "requests that made all their tokens", "vLLM labels the reason of the end",
        _num_with(Status.FINISHED),
    ),
    Metric(
        "kvsim_requests_running", Kind.GAUGE,
        "fastdeploy:num_requests_running", "vllm:num_requests_running",
        "requests that hold blocks", "none at the end of a run; over time: `result.gauges()`",
        _num_with(Status.LOADING, Status.PREFILLING, Status.DECODING),
    ),
    Metric(
        "kvsim_requests_waiting", Kind.GAUGE,
        "fastdeploy:num_requests_waiting", "vllm:num_requests_waiting",
        "requests that have arrived and hold none", "as the one above",
        _num_with(Status.WAITING),
    ),
    Metric(
        "kvsim_preemptions_total", Kind.COUNTER, None, "vllm:num_preemptions_total",
        "how often a request lost its blocks to others", "",
        lambda totals: sum(record.num_preemptions for record in totals.records),
    ),
    Metric(
        "kvsim_prompt_tokens_total", Kind.COUNTER,
        "fastdeploy:prompt_tokens_total", "vllm:prompt_tokens_total",
        "tokens of the prompts whose first token was made",
        "both others count a prompt when it has been computed, too",
        lambda totals: sum(
            record.request.num_input_tokens
            for record in totals.records
            if record.first_token_at is not None
        ),
    ),
    Metric(
        "kvsim_generation_tokens_total", Kind.COUNTER,
        "fastdeploy:generation_tokens_total", "vllm:generation_tokens_total",
        "tokens of output that were made", "",
        lambda totals: sum(record.num_made_tokens for record in totals.records),
    ),
    Metric(
        "kvsim_query_tokens_total", Kind.COUNTER, None, "vllm:prefix_cache_queries_total",
        "tokens of all prompts that were looked up, once a request",
        "vLLM leaves requests out that were preempted before; kvsim counts their first admission",
        lambda totals: sum(query.num_tokens for query in totals.asked),
    ),
    Metric(
        "kvsim_hit_tokens_total", Kind.COUNTER, "fastdeploy:prefix_cache_token_num", None,
        "tokens found in any tier (`prefix_token`)",
        "FastDeploy counts whole blocks, also of prompts that are tried again",
        lambda totals: totals.hit_tokens(0, *totals.lower),
    ),
    Metric(
        "kvsim_gpu_hit_tokens_total", Kind.COUNTER,
        "fastdeploy:prefix_gpu_cache_token_num", "vllm:prefix_cache_hits_total",
        "tokens found on the GPU",
        "vLLM never hits the last token of a prompt: that is `prefix_token_usable`",
        lambda totals: totals.hit_tokens(0),
    ),
    Metric(
        "kvsim_lower_hit_tokens_total", Kind.COUNTER,
        "fastdeploy:prefix_cpu_cache_token_num", "vllm:external_prefix_cache_hits_total",
        "tokens found in the tiers below the GPU",
        "FastDeploy: of the CPU alone; vLLM: of a connector",
        lambda totals: totals.hit_tokens(*totals.lower),
    ),
    Metric(
        "kvsim_lower_query_tokens_total", Kind.COUNTER,
        None, "vllm:external_prefix_cache_queries_total",
        "tokens that were not found on the GPU, and looked for below", "",
        lambda totals: sum(query.num_tokens for query in totals.asked) - totals.hit_tokens(0),
    ),
    Metric(
        "kvsim_window_hit_request_ratio", Kind.GAUGE, "fastdeploy:hit_req_rate", None,
        "requests of the window that found something", "kvsim counts a request once",
        lambda totals: totals.window.hit_request_ratio,
    ),
    Metric(
        "kvsim_window_hit_token_ratio", Kind.GAUGE, "fastdeploy:hit_token_rate", None,
        "tokens of the window found in any tier", "as the one above",
        lambda totals: totals.window.hit_token_ratio,
    ),
    Metric(
        "kvsim_window_gpu_hit_token_ratio", Kind.GAUGE, "fastdeploy:gpu_hit_token_rate", None,
        "tokens of the window found on the GPU", "as the one above",
        lambda totals: totals.window.tier_ratio(0),
    ),
    Metric(
        "kvsim_window_lower_hit_token_ratio", Kind.GAUGE, "fastdeploy:cpu_hit_token_rate", None,
        "tokens of the window found below the GPU", "FastDeploy: on the CPU alone",
        lambda totals: sum(map(totals.window.tier_ratio, totals.lower)),
    ),
    Metric(
        "kvsim_gpu_blocks", Kind.GAUGE, "fastdeploy:max_gpu_block_num", None,
        "blocks of the GPU tier", "",
        lambda totals: totals.tier_blocks[0],
    ),
    Metric(
        "kvsim_gpu_free_blocks", Kind.GAUGE, "fastdeploy:free_gpu_block_num", None,
        "blocks of the GPU tier that hold nothing", "needs events",
        _free_blocks,
    ),
    Metric(
        "kvsim_gpu_free_ratio", Kind.GAUGE, "fastdeploy:available_gpu_resource", None,
        "the same by all blocks of the tier", "needs events",
        _free_share,
    ),
    Metric(
        "kvsim_gpu_usage_ratio", Kind.GAUGE, None, "vllm:kv_cache_usage_perc",
        "blocks of the GPU tier that hold something, by all",
        "needs events; to vLLM a cached block that no request uses is free",
        _usage,
    ),
    Metric(
        "kvsim_time_to_first_token_seconds", Kind.SUMMARY,
        "fastdeploy:time_to_first_token_seconds", "vllm:time_to_first_token_seconds",
        "from arrival to first token", "both others have histograms",
        _spans(lambda r: r.request.arrived_at, lambda r: r.first_token_at),
    ),
    Metric(
        "kvsim_queue_seconds", Kind.SUMMARY,
        "fastdeploy:request_queue_time_seconds", "vllm:request_queue_time_seconds",
        "from arrival to first admission", "both others have histograms",
        _spans(lambda r: r.request.arrived_at, lambda r: r.admitted_at),
    ),
    Metric(
        "kvsim_prefill_seconds", Kind.SUMMARY,
        "fastdeploy:request_prefill_time_seconds", "vllm:request_prefill_time_seconds",
        "from first admission to first token", "both others have histograms",
        _spans(lambda r: r.admitted_at, lambda r: r.first_token_at),
    ),
    Metric(
        "kvsim_decode_seconds", Kind.SUMMARY,
        "fastdeploy:request_decode_time_seconds", "vllm:request_decode_time_seconds",
        "from first token to end", "both others have histograms",
        _spans(lambda r: r.first_token_at, lambda r: r.ended_at),
    ),
    Metric(
        "kvsim_latency_seconds", Kind.SUMMARY,
        "fastdeploy:e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds",
        "from arrival to end, of requests that made a token", "both others have histograms",
        _spans(
            lambda r: None if r.first_token_at is None else r.request.arrived_at,
            lambda r: r.ended_at,
        ),
    ),
)  # fmt: skip
"""All metrics. Sources: the pages "Monitoring Metrics" of FastDeploy and "Metrics" of vLLM."""


def check_names(names: str) -> None:
    """Raise `UnknownNameError` unless `names` is one of `NAMES`."""
    if names not in NAMES:
        raise UnknownNameError("names of metrics", names, NAMES)


def totals_of(
    records: Sequence[RequestRecord],
    *,
    block_size: int,
    window: int,
    tier_blocks: tuple[int, ...],
    events: Sequence[Event] | None,
) -> Totals:
    """Return what the metrics of a run are computed from.

    Raises
    ------
    ConfigError
        If the window has less than one query.
    """
    asked = queries(records, block_size)
    num_free = None
    if events is not None:
        occupancy = Occupancy(tier_blocks)
        for event in events:
            occupancy.emit(event)
        num_free = tuple(tier.counts[BlockUse.FREE] for tier in occupancy.tiers)
    return Totals(
        records=records,
        asked=asked,
        window=windows(asked, window)[-1],
        tier_blocks=tier_blocks,
        num_free_blocks=num_free,
    )


def metrics(totals: Totals, names: str) -> dict[str, Number]:
    """Return name -> value; a summary gives two. What the run does not know is left out.

    Raises
    ------
    UnknownNameError
        If `names` is none of `NAMES`.
    """
    check_names(names)
    found: dict[str, Number] = {}
    for metric in METRICS:
        name, value = metric.name_in(names), metric.value(totals)
        if name is None or value is None:
            continue
        if isinstance(value, tuple):
            found[f"{name}_sum"], found[f"{name}_count"] = value
        else:
            found[name] = value
    return found


def as_text(values: Mapping[str, Number], names: str) -> str:
    """Return metrics in the text format of Prometheus.

    Source: Prometheus, "Exposition formats", text-based format 0.0.4.
    """
    lines = []
    for metric in METRICS:
        name = metric.name_in(names)
        parts = (f"{name}_sum", f"{name}_count") if metric.kind is Kind.SUMMARY else (name,)
        if name is None or parts[0] not in values:
            continue
        lines += [f"# HELP {name} {metric.meaning}", f"# TYPE {name} {metric.kind}"]
        lines += [f"{part} {values[part]}" for part in parts if part is not None]
    return "".join(f"{line}\n" for line in lines)
