"""The Python call `kvsim.bench_transfer`: the swap engine against what this machine can do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvsim.backends.paddle.bench import Direction
from kvsim.backends.paddle.bench_process import BenchSpec, spec_to_json
from kvsim.backends.paddle.layout import Layout
from kvsim.backends.streaming import streaming_environment
from kvsim.errors import ConfigError, UnknownNameError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from kvsim.backends.paddle.bench_process import BenchRow

__all__ = ["TransferBench", "bench_transfer"]

_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_PACKAGE_PARENT: Final = Path(__file__).resolve().parent.parent
_LONGEST_S: Final = 3600

LAYOUTS: Final = tuple(layout.value for layout in Layout)
DIRECTIONS: Final = tuple(direction.value for direction in Direction)
DEFAULT_KIB: Final = (64, 128, 256, 1024, 4096)

_COLOURS: Final = {
    ("block-major", "block"): "#3b6fb6",
    ("block-major", "layer"): "#e08214",
    ("layer-major", "block"): "#5aae61",
}
_LINES: Final = {Direction.UP: "-", Direction.DOWN: "--", Direction.BOTH: ":"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferBench:
    """What `bench_transfer` measured.

    Parameters
    ----------
    device
        Where the nearest tier was.
    streaming
        Whether long copies bypassed the caches (`kvsim.backends.streaming`).
    rows
        One for each layout, unit, block size and direction.
    """

    device: str
    streaming: bool
    rows: tuple[BenchRow, ...]

    @property
    def title(self) -> str:
        """What was measured, in a line."""
        repeats = len(self.rows[0]["times_ns"])
        return (
            f"copies between two tiers, {self.device} and host; ids scattered; median of {repeats}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know."""
        ceiling = "one large contiguous copy of as many bytes, taken in turn with the transfer"
        if self.device != "cpu":
            return (f"ceiling: {ceiling}", "the other tier is pinned memory of the host")
        how = "bypass the caches" if self.streaming else "go as the C library decides"
        return (
            f"ceiling: {ceiling}",
            f"both tiers are memory of the host; long copies {how}",
        )

    def table_rows(self) -> list[tuple[str, ...]]:
        """Return the table, as text: layout, unit, block, direction, GB/s, ceiling, percent."""
        return [
            (
                row["layout"],
                row["unit"],
                _readable_bytes(row["block_bytes"]),
                row["direction"],
                f"{row['bytes_per_second'] / 1e9:.2f}",
                f"{row['ceiling_bytes_per_second'] / 1e9:.2f}",
                f"{row['percent_of_ceiling']:.0f} %",
            )
            for row in self.rows
        ]

    def to_json(self) -> str:
        """Return all of it as one JSON value."""
        return json.dumps(
            {"device": self.device, "streaming": self.streaming, "rows": list(self.rows)}
        )

    def plot(self, ax: Axes) -> Axes:
        """Draw the share of the ceiling against the block size; return the axes."""
        for (layout, unit), colour in _COLOURS.items():
            for direction, style in _LINES.items():
                points = sorted(
                    (row["block_bytes"] / _KIB, row["percent_of_ceiling"])
                    for row in self.rows
                    if (row["layout"], row["unit"]) == (layout, unit)
                    and row["direction"] == direction.value
                )
                if points:
                    by = f"{layout}, by {unit}" if layout == "block-major" else layout
                    ax.plot(
                        *zip(*points, strict=True),
                        color=colour,
                        linestyle=style,
                        marker="o",
                        markersize=3.5,
                        label=f"{by}: {direction.value}",
                    )
        sizes = sorted({row["block_bytes"] // _KIB for row in self.rows})
        ax.axhline(100, color="#666666", linewidth=0.8)
        ax.set_xscale("log", base=2)
        ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
        ax.minorticks_off()
        ax.set_ylim(bottom=0)
        ax.set_xlabel("block (KiB, all layers)")
        ax.set_ylabel("% of one contiguous copy")
        ax.set_title(self.title, loc="left", fontsize=10)
        ax.grid(axis="y", alpha=0.25, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        return ax


def bench_transfer(
    *,
    block_kib: Sequence[int] = DEFAULT_KIB,
    layouts: Sequence[str] = LAYOUTS,
    directions: Sequence[str] = DIRECTIONS,
    device: str = "cpu",
    mib: int = 64,
    repeats: int = 5,
    seed: int = 0,
    streaming: bool = True,
) -> TransferBench:
    """Measure the swap engine against one large contiguous copy, in a process of its own.

    Blocks have 8 layers; their ids are scattered over both tiers, the worst case. A block-major
    pool is measured by whole blocks and layer by layer, as swaps that computing overlaps with go.

    Parameters
    ----------
    block_kib
        Sizes of a block in KiB, multiples of 4.
    layouts, directions
        Of "block-major" and "layer-major"; of "up", "down" and "both" at once.
    device
        "cpu", both tiers in host memory, or "gpu:N" and pinned host memory.
    mib
        What a transfer moves each way, in MiB. Each tier takes twice that.
    repeats
        Measurements of each; the medians are reported.
    seed
        Of the ids.
    streaming
        Whether long copies bypass the caches, as they do in workers that are processes.

    Raises
    ------
    UserError
        If a value is impossible, the device is not there, or the measurement fails.
    """
    spec = BenchSpec(
        block_bytes=tuple(_checked("block_kib", each, 4, 1 << 20) * _KIB for each in block_kib),
        layouts=_known("layout", layouts, LAYOUTS),
        directions=_known("direction", directions, DIRECTIONS),
        device=device,
        bytes_each_way=_checked("mib", mib, 1, 1 << 20) * _MIB,
        repeats=_checked("repeats", repeats, 1, 10_000),
        seed=_checked("seed", seed, 0, 1 << 53),
    )
    for size in spec.block_bytes:
        if size % (4 * _KIB):
            raise ConfigError(f"block_kib must be multiples of 4, not {size // _KIB}")
        if size > spec.bytes_each_way:
            raise ConfigError(f"mib is {mib}, less than a block of {size // _KIB} KiB")
    if not (spec.block_bytes and spec.layouts and spec.directions):
        raise ConfigError("name at least one block size, one layout and one direction")
    rows = _run(spec, streaming=streaming)
    return TransferBench(device=device, streaming=streaming, rows=tuple(rows))


def _run(spec: BenchSpec, *, streaming: bool) -> list[BenchRow]:
    environment = dict(os.environ)
    paths = [str(_PACKAGE_PARENT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kvsim.backends.paddle.bench_process"],
            input=spec_to_json(spec),
            env=streaming_environment(environment) if streaming else environment,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"the measurement took more than {_LONGEST_S} s: ask for less") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise UserError(f"the measurement failed: {lines[-1]}")
    rows: list[BenchRow] = json.loads(done.stdout)
    return rows


def _checked(name: str, value: int, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} must be an integer from {least} to {most}, not {value!r}")
    return value


def _known(kind: str, names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            raise UnknownNameError(kind, name, known)
    return tuple(names)


def _readable_bytes(num_bytes: int) -> str:
    if num_bytes % _MIB:
        return f"{num_bytes // _KIB} KiB"
    return f"{num_bytes // _MIB} MiB"
