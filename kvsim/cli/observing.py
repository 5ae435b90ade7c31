"""What a run is looked at with: options of every command that simulates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from kvsim.hitrate.timed import TimedAttribution
    from kvsim.result import ReplayResult

_FILES: Final = ("metrics", "kv_events", "perfetto")


def add_perfetto_argument(parser: ArgumentParser) -> None:
    """Add the option for a timeline."""
    parser.add_argument(
        "--perfetto", metavar="FILE", help="write a timeline there, for ui.perfetto.dev"
    )


def add_observing_arguments(parser: ArgumentParser) -> None:
    """Add the options."""
    titled = parser.add_argument_group("what became of it")
    titled.add_argument(
        "--attribution",
        action="store_true",
        help="say what each prompt block met: a hit, or why not",
    )
    titled.add_argument(
        "--metrics",
        metavar="FILE",
        help="write counters and gauges there, in Prometheus' text format",
    )
    titled.add_argument(
        "--metric-names", metavar="NAME", help="whose: kvsim, fastdeploy or vllm; default: kvsim"
    )
    titled.add_argument(
        "--window",
        type=int,
        default=10_000,
        metavar="N",
        help="requests a window of the metrics has; default: 10000",
    )
    titled.add_argument(
        "--kv-events",
        metavar="FILE",
        help="write what a router would be told of the cache there, as JSON Lines",
    )
    add_perfetto_argument(parser)


def needs_events(arguments: Namespace) -> bool:
    """Return whether the run must keep its events; the files can be written, by the look of them.

    Raises
    ------
    UserError
        If a file could not be written, or an option makes no sense.
    """
    from kvsim.errors import UserError
    from kvsim.saving import check_file

    asked = [getattr(arguments, name) for name in _FILES if getattr(arguments, name) is not None]
    for file in asked:
        check_file(file)
    if arguments.window < 1:
        raise UserError(f"--window must be at least 1, not {arguments.window}")
    if arguments.metric_names is not None:
        from kvsim.analysis.metric_names import check_names

        check_names(arguments.metric_names)
        if arguments.metrics is None:
            raise UserError("--metric-names needs --metrics: name the file")
    return arguments.attribution or bool(asked)


def write_files(arguments: Namespace, result: ReplayResult, found: TimedAttribution | None) -> None:
    """Write the files that were asked for; the attribution goes to the folder of the result."""
    from kvsim.saving import write_lines

    if found is not None and arguments.out is not None:
        _save_attribution(found, arguments.out)
    if arguments.metrics is not None:
        from kvsim.analysis.metric_names import as_text

        names = arguments.metric_names or "kvsim"
        values = result.metrics(names=names, window=arguments.window)
        write_lines(arguments.metrics, [as_text(values, names)])
    if arguments.kv_events is not None:
        from kvsim.analysis.kv_events import json_line

        lines = (f"{json_line(event)}\n" for event in result.kv_events())
        write_lines(arguments.kv_events, lines)
    if arguments.perfetto is not None:
        result.perfetto(arguments.perfetto)


def attribution_of(result: ReplayResult) -> TimedAttribution:
    """Return what became of each prompt block."""
    from kvsim.hitrate.timed import attribute_misses

    return attribute_misses(result)


def _save_attribution(found: TimedAttribution, folder: str) -> None:
    """Write misses.parquet and misses.png into the folder of a result."""
    from kvsim.analysis.plots import save_plot
    from kvsim.saving import new_files

    with new_files(folder, last="misses.parquet") as made:
        save_plot(made / "misses.png", found.plot)
        found.frame.to_parquet(made / "misses.parquet", index=False)


def show_attribution(found: TimedAttribution) -> None:
    """Print the table, and what its classes mean."""
    from kvsim.cli.lab import show_table
    from kvsim.hitrate.timed import AGAIN, CLASSES, TABLE_HEAD

    notes = [
        *(
            f"{name.replace('_', ' ')}: {text}"
            for name, text in CLASSES.items()
            if found.blocks[name] or found.tokens[name]
        ),
        *(f"{n:,} blocks {AGAIN[name]}" for name, n in found.num_again.items() if n),
    ]
    title = f"What prompt blocks met (the optimum has {found.capacity:,} blocks)"
    show_table(title, TABLE_HEAD, found.rows(), notes)
