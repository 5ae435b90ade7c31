"""`kvsim pd`: a trace on prefill and decode instances; `kvsim.split` and `kvsim.split_sweep`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvsim.cli.observing import add_perfetto_argument
from kvsim.cli.replay import OPTIONS, add_options
from kvsim.errors import UserError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    import pandas as pd

HELP: Final = "replay a trace on prefill and decode instances and report what the split costs"

SPLIT_OPTIONS: Final[dict[str, tuple[Callable[[str], object], str]]] = {
    "prefill": (int, "prefill instances; default: 1"),
    "decode": (int, "decode instances; default: 1"),
    "tp": (str, "ranks of each, prefill:decode, as 4:2; default: the GPUs of the hardware"),
    "link": (str, "what lies between: a network's name, or GB/s a card; default: ib-400g"),
    "send": (str, "layerwise, or at_end: the whole prompt when it is computed"),
    "on_send_failure": (str, "recompute, or fail the request; default: recompute"),
    "routing": (str, "least_loaded, round_robin or cache_aware; default: least_loaded"),
    "send_timeout_ns": (int, "deadline of a send, in ns; default: none"),
    "reserve_timeout_ns": (int, "how long decode keeps blocks for KV to come, in ns"),
    "max_receiving": (int, "requests a decode instance waits for at a time; default: all"),
}
"""Field of `SplitSettings` -> how its text is read and what `--help` says."""

_LEFT_OUT: Final = {"instant", "interventions", "warmup"}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command; an option that is not given is None."""
    parser.add_argument("trace", metavar="TRACE", help="a trace file, or sample:chat")
    parser.add_argument("--config", metavar="FILE", help="settings as TOML; options go before it")
    parser.add_argument(
        "--out", metavar="DIR", help="save run.json, the tables and the plots there"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value, no table")
    parser.add_argument(
        "--sweep",
        metavar="NAME=A,B,...",
        help="vary link (GB/s), token_budget or layers instead, both ways of sending",
    )
    add_perfetto_argument(parser)
    add_options(parser, "split", SPLIT_OPTIONS)
    for group, options in OPTIONS.items():
        wanted = {name: each for name, each in options.items() if name not in _LEFT_OUT}
        add_options(parser, group, wanted)


def run(arguments: Namespace) -> int:
    """Run, save, print; return the exit code."""
    from kvsim.cli.terminal import progress_bar, show_facts
    from kvsim.saving import check_file, check_folder
    from kvsim.splitting import split

    if arguments.out is not None:
        check_folder(arguments.out)  # better now than after an hour
    if arguments.perfetto is not None:
        check_file(arguments.perfetto)
    names = [*SPLIT_OPTIONS, *(name for options in OPTIONS.values() for name in options)]
    settings: dict[str, Any] = {name: getattr(arguments, name, None) for name in names}
    if arguments.sweep is not None:
        return _sweep(arguments, settings)
    with progress_bar("split") as progress:
        result = split(
            arguments.trace,
            config=arguments.config,
            events=arguments.perfetto is not None,
            progress=progress,
            **settings,
        )
    if arguments.out is not None:
        result.save(arguments.out)
    if arguments.perfetto is not None:
        result.perfetto(arguments.perfetto)
    if arguments.json:
        print(result.to_json())
    else:
        show_facts(result.title, result.fact_rows(), result.notes, saved_to=arguments.out)
    for fault in result.faults:
        print(f"kvsim: {fault}", file=sys.stderr)
    return 1 if result.faults else 0


def _sweep(arguments: Namespace, settings: dict[str, Any]) -> int:
    from kvsim.cli.terminal import progress_bar, show_tables
    from kvsim.splitting import split_sweep

    if arguments.perfetto is not None:
        raise UserError("--perfetto is of one run, and --sweep makes many: leave one of them out")
    over, values = _parsed(arguments.sweep)
    send = settings.pop("send", None)
    sends = ("layerwise", "at_end") if send is None else (str(send),)
    with progress_bar("sweep") as progress:
        frame = split_sweep(
            arguments.trace,
            over=over,
            values=values,
            sends=sends,
            config=arguments.config,
            progress=progress,
            **settings,
        )
    if arguments.out is not None:
        _save(frame, over, arguments)
    if arguments.json:
        print(frame.to_json(orient="records"))
        return 0
    heads = (over, "send", "TTFT ms", "p99 ms", "exposed ms", "hidden", "busiest", "full")
    rows = [
        (
            f"{value:g}",
            str(row["send"]),
            f"{row['ttft_mean_ms']:,.0f}",
            f"{row['ttft_p99_ms']:,.0f}",
            f"{row['exposed_transfer_ms']:,.2f}",
            f"{row['hidden_fraction']:.1%}",
            f"{row['max_utilisation']:.1%}",
            "yes" if row["is_network_bound"] else "no",
        )
        for value, row in zip(frame[over], frame.to_dict("records"), strict=True)
    ]
    show_tables([[heads, *rows]])
    return 0


def _parsed(text: str) -> tuple[str, list[float]]:
    name, _, listed = text.partition("=")
    try:
        return name, [float(each) for each in listed.split(",")]
    except ValueError as error:
        raise UserError(f"--sweep: {text!r} is not NAME=A,B,... such as link=5,10,25,50") from error


def _save(frame: pd.DataFrame, over: str, arguments: Namespace) -> None:
    from kvsim.analysis.plots import save_plot
    from kvsim.saving import new_files
    from kvsim.splitting.plots import plot_sweep

    with new_files(arguments.out, last="sweep.parquet") as folder:
        caption = f"trace {Path(arguments.trace).name}"
        save_plot(folder / "sweep.png", partial(plot_sweep, frame, over=over, caption=caption))
        frame.to_parquet(folder / "sweep.parquet", index=False)
