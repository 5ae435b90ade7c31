"""`kvsim sweep`: the sweep is in a TOML file, the rest is `kvsim.sweep`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    import pandas as pd

    from kvsim.sweeping.result import SweepResult

HELP: Final = "replay traces with several policies at several capacities, and compare the policies"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("file", metavar="FILE", help="what to sweep, as TOML")
    parser.add_argument(
        "--out",
        metavar="DIR",
        required=True,
        help="save sweep.parquet, sweep.json and the cells there; what is there is not run again",
    )
    parser.add_argument(
        "--executor",
        metavar="NAME",
        default="local",
        help="local processes, dask, or another backend of joblib; default: local",
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="Dask scheduler, one that you trust; default: a cluster on this machine",
    )
    parser.add_argument(
        "--jobs", metavar="N", type=int, help="processes on this machine; default: one a CPU"
    )
    parser.add_argument(
        "--baseline", metavar="POLICY", help="compare the other policies with this one"
    )
    parser.add_argument("--plot", metavar="FILE", help="save the hit rates over the capacity")
    parser.add_argument("--json", action="store_true", help="print one JSON value, no table")


def run(arguments: Namespace) -> int:
    """Sweep, save, print; return the exit code."""
    from kvsim.cli.terminal import progress_bar
    from kvsim.errors import UnknownNameError
    from kvsim.sweeping.config import load_sweep_file
    from kvsim.sweeping.run import sweep

    config = load_sweep_file(arguments.file)
    if arguments.baseline is not None and arguments.baseline not in config.policies:
        raise UnknownNameError("policy of this sweep", arguments.baseline, config.policies)
    _check_picture(arguments.plot)
    try:
        with progress_bar("sweep") as progress:
            table = sweep(
                config,
                out=arguments.out,
                executor=arguments.executor,
                scheduler=arguments.scheduler,
                jobs=arguments.jobs,
                progress=progress,
            )
    except KeyboardInterrupt:
        print(f"kvsim: what is finished is kept in {arguments.out}", file=sys.stderr)
        raise
    if arguments.plot is not None:
        _save_picture(table, Path(arguments.plot))
    comparisons = _comparisons(table, arguments.baseline)
    if arguments.json:
        print(_json(table, comparisons))
    else:
        _show(table, comparisons, arguments)
    for failure in table.failures:
        print(f"kvsim: failed: {failure}", file=sys.stderr)
    return 1 if table.failures else 0


def _check_picture(file: str | None) -> None:
    """Raise `UserError` if a picture could not be saved there: better now than after an hour."""
    from kvsim.errors import UserError
    from kvsim.saving import check_folder

    if file is None:
        return
    path = Path(file)
    if path.suffix.lower() not in _PICTURES:
        raise UserError(f"--plot {file}: the name must end in one of {', '.join(_PICTURES)}")
    if path.is_dir():
        raise UserError(f"--plot {file}: a directory; name a file in it")
    check_folder(path.parent.absolute())


def _save_picture(table: SweepResult, file: Path) -> None:
    from kvsim.analysis.plots import new_figure
    from kvsim.saving import new_files
    from kvsim.sweeping.plots import add_panels

    figure = new_figure()
    table.plot(ax=add_panels(figure, len(table.traces)))
    with new_files(file.parent.absolute(), last=file.name) as folder:
        figure.savefig(folder / file.name, dpi=130)


def _comparisons(table: SweepResult, baseline: str | None) -> list[pd.DataFrame]:
    if baseline is None:
        return []
    others = [policy for policy in table.policies if policy != baseline]
    return [table.compare(policy, baseline=baseline) for policy in others]


def _json(table: SweepResult, comparisons: list[pd.DataFrame]) -> str:
    """Return the summary, the rates and the comparisons as one line of JSON with sorted keys."""
    from kvsim.analysis.metrics import DEFINITIONS

    value = table.summary() | {
        "comparisons": [row for each in comparisons for row in json_rows(each)],
        "rates": {name: json_rows(table.rates(name)) for name in DEFINITIONS},
    }
    return json.dumps(value, sort_keys=True, allow_nan=False)


def json_rows(frame: pd.DataFrame) -> list[dict[str, object]]:
    """Return the rows of a frame as JSON values; what is missing is null."""
    import pandas as pd

    columns = {name: frame[name].astype(object).tolist() for name in frame.columns}
    return [
        {
            name: None if value is pd.NA or value != value else value
            for name, value in zip(columns, row, strict=True)
        }
        for row in zip(*columns.values(), strict=True)
    ]


def _show(table: SweepResult, comparisons: list[pd.DataFrame], arguments: Namespace) -> None:
    """Print the rates, and the comparisons, as tables."""
    counts, rates, short = table.num_cells, json_rows(table.rates()), table.short_names
    # What is the same everywhere is said once, above the table.
    places = {name: head for name, head in _HEADS.items() if len({row[name] for row in rates}) > 1}
    said = [f"{head} {rates[0][name]}" for name, head in _HEADS.items() if name not in places]
    print(f"{arguments.file}: {counts['done']:,} of {counts['total']:,} cells done")
    if said:
        print(", ".join(said))
    heads = [*places.values(), *table.policies]
    rows = [
        [*_words(row, places, short), *(_share(row[name]) for name in table.policies)]
        for row in rates
    ]
    _print_table("hit rate (prefix_token)", heads, rows)
    if comparisons:
        found = [json_rows(each) for each in comparisons]
        rows = [
            [*_words(row, places, short), *_difference(row)]
            for rows in zip(*found, strict=True)
            for row in rows
        ]
        title = f"percentage points above {arguments.baseline}"
        heads = [*places.values(), "policy", "points", "95 % interval"]
        _print_table(title, heads, rows)
    print(f"saved to {arguments.out}")


def _print_table(title: str, heads: list[str], rows: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    printed = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        justify: Literal["left", "right"] = "left" if head in _TEXTS else "right"
        printed.add_column(head, justify=justify, overflow="fold")
    for row in rows:
        printed.add_row(*row)
    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as text:
        console.print(printed)
    for line in text.get().splitlines():
        print(line.rstrip())  # rich fills up the last column


def _words(row: dict[str, object], places: dict[str, str], short: dict[str, str]) -> list[str]:
    values = [short[str(row[name])] if name == "trace" else row[name] for name in places]
    return [f"{each:,}" if isinstance(each, int) else str(each or "-") for each in values]


def _share(rate: object) -> str:
    return f"{rate:.2%}" if isinstance(rate, float) else "failed"


def _difference(row: dict[str, object]) -> list[str]:
    """Return the policy, by how many points it is above the baseline, and the interval."""
    policy = str(row["policy"])
    low, high, difference = (row[name] for name in ("ci_low", "ci_high", "difference"))
    if not isinstance(difference, float):
        return [policy, "failed", ""]
    if not isinstance(low, float) or not isinstance(high, float):
        return [policy, f"{100 * difference:+.2f}", "too few requests"]
    return [policy, f"{100 * difference:+.2f}", f"{100 * low:+.2f} to {100 * high:+.2f}"]


_PICTURES: Final = (".pdf", ".png", ".svg")
_TEXTS: Final = ("trace", "config", "policy")
_HEADS: Final = {
    "trace": "trace",
    "config": "config",
    "gpu_blocks": "GPU blocks",
    "cpu_blocks": "CPU blocks",
    "seed": "seed",
}
