"""What a calibration has found, and what the simulator makes of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kvsim.config import LinkConfig
from kvsim.errors import ConfigError
from kvsim.presets import find_hardware

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

    from kvsim.calibration.fit import Line
    from kvsim.cost import Hardware
    from kvsim.replay_config import ReplayConfig

DEFAULT_LAYOUT: Final = "block-major"

HEAD: Final = ("copy", "each op (us)", "each block (us)", "GB/s", "residual", "samples")

_FULL_DUPLEX_FROM: Final = 0.75
"""Of the rate that two directions keep: halfway between one link for both and one for each."""


class Measured(NamedTuple):
    """Medians of one size, in nanoseconds: up and down."""

    blocks: int
    in_ns: int
    out_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What was measured with; a run under other conditions has other costs."""

    backend: str
    shape: str
    device: str
    ranks: int
    workers: str
    layout: str
    rank_block_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where and when it was measured."""

    kvsim_version: str
    python_version: str
    paddle_version: str
    machine: str
    date: str
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What copies between the tiers cost on each rank. Made by `kvsim.calibrate`.

    Parameters
    ----------
    base
        Name of the preset that has what is not measured here: arithmetic and memory of the GPU.
    swap_in, swap_out
        What a copy takes, up and down.
    step
        What a step takes beyond its time in the cost model, by the blocks of prompts it computes:
        the engine's turn, the way to the ranks, and the bytes that they write and check.
    turn_ns
        Mean time of the engine for a turn: it takes answers and decides what follows.
    duplex_factor
        How much of their rate both directions keep when both are busy: 1 to 0.5 (one link).
    wait_ns
        Median of what passes from the submission of a copy to its end beside the copying: the way
        to the ranks and back, the turns of steps in between, waits for a core.
    sizes
        What was measured, by size.
    """

    base: str
    conditions: Conditions
    origin: Origin
    swap_in: Line
    swap_out: Line
    step: Line
    turn_ns: int
    duplex_factor: float
    wait_ns: int
    sizes: tuple[Measured, ...]

    @property
    def hardware(self) -> Hardware:
        """The base machine, with the link that was measured: the mean of both directions."""
        both = replace(
            self.swap_in,
            op_ns=(self.swap_in.op_ns + self.swap_out.op_ns) / 2,
            block_ns=(self.swap_in.block_ns + self.swap_out.block_ns) / 2,
        )
        name = f"{self.base} with the link of {self.origin.machine}"
        return replace(find_hardware(self.base), name=name, host_link=self._link(both))

    @property
    def links(self) -> Mapping[tuple[int, int], LinkConfig]:
        """The link of each direction, by (source tier, target tier)."""
        if self.duplex_factor < _FULL_DUPLEX_FROM:  # one link has one rate
            return {(0, 1): self.hardware.host_link}
        return {(0, 1): self._link(self.swap_out), (1, 0): self._link(self.swap_in)}

    def copy_ns(self, num_blocks: int, *, is_in: bool) -> float:
        """Return what a copy of `num_blocks` blocks takes by itself, in nanoseconds."""
        return (self.swap_in if is_in else self.swap_out).ns(num_blocks)

    def check_fits(self, config: ReplayConfig) -> None:
        """Raise `ConfigError` if a run with these settings has other copies than were measured."""
        asked = {
            "backend": config.backend,
            "shape": config.shape or "tiny",
            "device": config.device or "cpu",
            "ranks": config.ranks or 1,
            "workers": config.worker_kind.value,
            "layout": config.layout or DEFAULT_LAYOUT,
        }
        for name, value in asked.items():
            measured = getattr(self.conditions, name)
            if measured != value:
                raise ConfigError(
                    f"hardware was calibrated with {name} {measured!r} and the run has {value!r}:"
                    f" calibrate with {name} {value!r}, or run with {measured!r}"
                )

    def to_dict(self) -> dict[str, object]:
        """Return all of it as JSON values: what `kvsim calibrate --json` prints."""
        return asdict(self) | {"sizes": [each._asdict() for each in self.sizes]}

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table as text, under `HEAD`."""
        return [
            (
                name,
                f"{line.op_ns / 1000:,.1f}",
                f"{line.block_ns / 1000:,.3f}",
                f"{self.conditions.rank_block_bytes / line.block_ns:,.2f}",
                f"{line.residual:.1%}",
                f"{line.num_samples:,}",
            )
            for name, line in (("swap-in", self.swap_in), ("swap-out", self.swap_out))
        ]

    def notes(self) -> list[str]:
        """Return what the table does not say."""
        found = self.conditions
        return [
            f"per rank, {found.rank_block_bytes:,} bytes a block; {found.ranks} ranks on"
            f" {found.device} ({found.workers})",
            f"a step takes {self.step.op_ns / 1000:,.0f} us +"
            f" {self.step.block_ns / 1000:,.1f} us a block of its prompts beyond its timer",
            f"both directions at once keep {self.duplex_factor:.0%} of their rate; a copy waits"
            f" {self.wait_ns / 1000:,.0f} us besides; a turn of the engine takes"
            f" {self.turn_ns / 1000:,.0f} us",
            f"{self.origin.machine}; Paddle {self.origin.paddle_version}, {self.origin.date}",
        ]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw what was measured and the lines through it; return the axes."""
        from kvsim.calibration.plots import plot_calibration

        return plot_calibration(self, ax=ax)

    def _link(self, line: Line) -> LinkConfig:
        """Return a link on which a lone copy takes what the line says, and waits besides."""
        return LinkConfig(
            bytes_per_second=max(1, round(self.conditions.rank_block_bytes * 1e9 / line.block_ns)),
            latency_ns=self.wait_ns,
            overhead_ns=round(line.op_ns),
            full_duplex=self.duplex_factor >= _FULL_DUPLEX_FROM,
        )
