"""The figures of a replay as text, beside its hits."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.analysis.metrics import HitCounts
    from kvsim.result import ReplayResult

HIT_HEADS: Final = ("hits", "GPU", "CPU", "of", "rate")


def hit_rows(counts: Mapping[str, HitCounts]) -> list[tuple[str, ...]]:
    """Return the table of hits, under `HIT_HEADS`."""
    return [
        (name, f"{n.gpu:,}", f"{n.cpu:,}", f"{n.total:,}", f"{n.figure()['rate']:.2%}")
        for name, n in counts.items()
    ]


def fact_rows(result: ReplayResult, *, num_warmup: int) -> list[tuple[str, str]]:
    """Return the figures that are no hits: name and value."""
    config, ends = result.config, result.num_requests
    rows = [
        ("capacity", f"{config.gpu_blocks:,} GPU blocks, {config.cpu_blocks:,} CPU blocks"),
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
    head = "".join(f"<th>{name}</th>" for name in HIT_HEADS)
    hits = "".join(_html_row(row) for row in result.hit_rows())
    facts = "".join(_html_row(row) for row in result.fact_rows())
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.notes)
    return (
        f"<p><b>{escape(result.title)}</b> (clock: {result.clock}, seed {result.config.seed})</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{hits}</tbody></table>"
        f"<table><tbody>{facts}</tbody></table>{f'<ul>{notes}</ul>' if notes else ''}"
    )


def _html_row(cells: tuple[str, ...]) -> str:
    first, *others = cells
    right = "".join(f'<td style="text-align:right">{escape(cell)}</td>' for cell in others)
    return f'<tr><td style="text-align:left">{escape(first)}</td>{right}</tr>'
