"""The figures of a replay as text, beside its hits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.analysis.orders import intervention_row
from kvsim.html import html_notes, html_rows, html_run
from kvsim.result_parts import called

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.analysis.metrics import HitCounts
    from kvsim.result import ReplayResult


def hit_rows(counts: Mapping[str, HitCounts], tiers: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the table of hits, under `ReplayResult.hit_heads`."""
    return [
        (
            name,
            *(f"{each.figure(tier=tier)['hits']:,}" for tier in tiers),
            f"{each.total:,}",
            f"{each.figure()['rate']:.2%}",
        )
        for name, each in counts.items()
    ]


def fact_rows(
    result: ReplayResult, sizes: Mapping[str, int], *, num_warmup: int
) -> list[tuple[str, str]]:
    """Return the figures that are no hits: name and value."""
    ends = result.num_requests
    rows = [
        ("capacity", ", ".join(f"{n:,} {called(tier)} blocks" for tier, n in sizes.items())),
        ("requests", ", ".join(f"{n:,} {end}" for end, n in ends.items() if n)),
    ]
    if num_warmup:
        rows.append(("warm-up", f"the first {num_warmup:,} are not in the hits"))
    if result.ttft_ms is not None:
        figures = ", ".join(f"{name} {value:,.1f}" for name, value in result.ttft_ms.items())
        rows.append(("TTFT (ms)", figures))
    for direction, swap in (result.swaps or {}).items():
        if swap["count"]:
            text = (
                f"{swap['blocks']:,} blocks in {swap['done']:,} transfers,"
                f" {swap['bytes'] / 2**30:,.1f} GiB, {swap['busy_ms'] / 1000:,.1f} s busy"
            )
            if swap["done"] < swap["count"]:
                text += f"; {swap['count'] - swap['done']:,} transfers failed"
            rows.append((direction.replace("_", "-"), text))
    if result.tensors is not None:
        rows.append(("tensors", _tensor_text(result)))
    if result.recording is not None:
        same = {None: "", True: ", identical when replayed", False: ", NOT identical"}
        turns = result.recording["turns"]
        rows.append(("recording", f"{turns:,} turns{same[result.recording['identical']]}"))
    rows += map(intervention_row, result.interventions)
    if result.num_preemptions:
        rows.append(("preemptions", f"{result.num_preemptions:,}"))
    if result.num_duplicate_blocks:
        rows.append(("duplicates", f"{result.num_duplicate_blocks:,} blocks computed twice"))
    return rows


def _tensor_text(result: ReplayResult) -> str:
    tensors, config = result.tensors, result.config
    if tensors is None:
        return ""
    ranks = "1 rank" if result.num_ranks == 1 else f"{result.num_ranks} ranks"
    return (
        f"{tensors['wrong_bytes']:,} wrong bytes in {tensors['blocks_checked']:,} blocks read,"
        f" {tensors['blocks_swapped']:,} swapped; {ranks} on {config.device},"
        f" {config.time_scale:,} x as fast"
    )


def html(result: ReplayResult) -> str:
    """Return the figures as tables for a notebook."""
    return (
        html_run(result.title, clock=result.clock, seed=result.config.seed)
        + html_rows(result.hit_rows(), head=result.hit_heads)
        + html_rows(result.fact_rows())
        + html_notes(result.notes)
    )
