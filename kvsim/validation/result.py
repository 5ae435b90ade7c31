"""What a validation has found."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

    from kvsim.calibration import Calibration
    from kvsim.recording import Rerun
    from kvsim.result import ReplayResult
    from kvsim.validation.compare import Comparison, Pair, Swaps
    from kvsim.validation.predict import Prediction

HEAD: Final = ("predicted against measured", "predicted", "measured", "ratio", "95 % of it")

_NS_PER_MS: Final = 10**6
NO_SWAP: Final = "no swap exercised: fewer GPU blocks, or more requests, make some"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Validation:
    """A finished validation. Made by `kvsim.validate`; docs/validation.md describes every figure.

    Parameters
    ----------
    run
        The run on tensors.
    again
        Its recording, decided again.
    prediction
        The calibrated simulator on the same arrivals.
    calibration, calibrated
        What copies cost, and where that is from.
    before
        What they cost in the pilot before the run; the same where the calibration is from a file.
    tolerance
        What the ratios of the copy times may be off by.
    comparison
        All figures.
    """

    run: ReplayResult
    again: Rerun
    prediction: Prediction
    calibration: Calibration
    before: Calibration
    calibrated: str
    tolerance: float
    comparison: Comparison

    @property
    def ratios(self) -> dict[str, float | None]:
        """Predicted over measured; None if nothing was measured."""
        found = self.comparison
        return {
            "swap_in": found.swap_in.total_ns.ratio,
            "swap_out": found.swap_out.total_ns.ratio,
            "ttft_mean": found.ttft_mean_ms.ratio,
        }

    @property
    def within(self) -> bool:
        """Whether the copy times of both directions are predicted within the tolerance.

        A direction in which nothing was copied does not count; that nothing was copied at all does.
        The time to first token is reported and not judged: see docs/validation.md.
        """
        judged = [self.ratios[name] for name in ("swap_in", "swap_out")]
        ratios = [ratio for ratio in judged if ratio is not None]
        return bool(ratios) and all(abs(ratio - 1) <= self.tolerance for ratio in ratios)

    @property
    def wrong_bytes(self) -> int:
        """Bytes that were read and are not what they must be."""
        return 0 if self.run.tensors is None else self.run.tensors["wrong_bytes"]

    @property
    def blocks_checked(self) -> int:
        """Blocks that were read and compared, on every rank."""
        return 0 if self.run.tensors is None else self.run.tensors["blocks_checked"]

    @property
    def faults(self) -> tuple[str, ...]:
        """What must not be, one sentence each; empty: all is well."""
        found = []
        if self.wrong_bytes:
            found.append(f"{self.wrong_bytes:,} bytes that were read are wrong")
        if not self.again.identical:
            found.append(f"the recording is decided otherwise: {self.again.difference}")
        if not (self.comparison.swap_in.count.measured or self.comparison.swap_out.count.measured):
            return (*found, NO_SWAP)
        if not self.within:
            off = ", ".join(
                f"{name.replace('_', '-')} {ratio:.3f}"
                for name, ratio in self.ratios.items()
                if name != "ttft_mean" and ratio is not None
            )
            found.append(
                f"predicted over measured is outside {1 - self.tolerance:g} to"
                f" {1 + self.tolerance:g}: {off}"
            )
        return tuple(found)

    def to_dict(self) -> dict[str, object]:
        """Return the figures as JSON values: what `kvsim validate --json` prints."""
        return {
            "wrong_bytes": self.wrong_bytes,
            "blocks_checked": self.blocks_checked,
            "decisions_identical": self.again.identical,
            "decisions_compared": self.again.compared,
            "predicted_over_measured": self.ratios,
            "tolerance": self.tolerance,
            "within": self.within,
            "calibration": {
                "source": self.calibrated,
                "conditions": asdict(self.calibration.conditions),
                "origin": asdict(self.calibration.origin),
                "swap_in": asdict(self.calibration.swap_in),
                "swap_out": asdict(self.calibration.swap_out),
                "duplex_factor": self.calibration.duplex_factor,
                "step": asdict(self.calibration.step),
                "wait_ns": self.calibration.wait_ns,
                "turn_ns": self.calibration.turn_ns,
            },
        }

    def to_json(self) -> str:
        """Return the figures as one line of JSON with sorted keys."""
        return json.dumps(self.to_dict(), sort_keys=True, allow_nan=False)

    # -- for people

    @property
    def title(self) -> str:
        """One line that says what was validated."""
        config = self.run.config
        return (
            f"{self.run.trace.name}: {self.run.trace.num_requests:,} requests on"
            f" {config.gpu_blocks:,} GPU + {config.cpu_blocks:,} CPU blocks,"
            f" {self.run.num_ranks} ranks on {config.device} ({config.worker_kind}),"
            f" {config.time_scale:,} x as fast"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table as text, under `HEAD`."""
        found = self.comparison
        return [
            *_swap_rows("swap-in", found.swap_in),
            *_swap_rows("swap-out", found.swap_out),
            _row("stalls (swap-in, issue to end, ms)", found.swap_in.waited_ns, scale=_NS_PER_MS),
            _row("TTFT mean (ms)", found.ttft_mean_ms),
            _row("TTFT p50 (ms)", found.ttft_p50_ms),
            _row("TTFT p99 (ms)", found.ttft_p99_ms),
            _row("hit rate (prefix_token)", found.hit_rate, digits=4),
        ]

    def notes(self) -> list[str]:
        """Return what the table does not say."""
        same = "identical" if self.again.identical else "NOT identical"
        line = self.calibration
        return [
            f"{self.wrong_bytes:,} wrong bytes in {self.blocks_checked:,} blocks read",
            f"decisions when replayed: {same}, {self.again.compared:,} compared",
            f"calibrated {self.calibrated}: swap-in {line.swap_in.op_ns / 1000:,.1f} us +"
            f" {line.swap_in.block_ns / 1000:,.2f} us a block, swap-out"
            f" {line.swap_out.op_ns / 1000:,.1f} us + {line.swap_out.block_ns / 1000:,.2f} us",
            "copy time: of the slowest rank, without waits; 'same ops' takes the sizes of the run's"
            " own copies, so its error is the link's alone",
            *self.run.notes,
        ]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw every copy of the run and the lines that predict them; return the axes."""
        from kvsim.validation.plots import plot_copies

        return plot_copies(self, ax=ax)

    def __repr__(self) -> str:
        texts = (
            f"{name} {'-' if ratio is None else f'{ratio:.3f}'}"
            for name, ratio in self.ratios.items()
        )
        return f"<Validation {self.title}; {', '.join(texts)}>"

    def _repr_html_(self) -> str:
        from html import escape

        def row(tag: str, cells: tuple[str, ...]) -> str:
            return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

        rows = "".join(row("td", each) for each in self.rows())
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes())
        return (
            f"<p><b>{escape(self.title)}</b></p><table><thead>{row('th', HEAD)}</thead>"
            f"<tbody>{rows}</tbody></table><ul>{notes}</ul>"
        )


def _swap_rows(name: str, swaps: Swaps) -> Iterator[tuple[str, ...]]:
    yield _row(f"{name} copies", swaps.count, digits=0)
    yield _row(f"{name} blocks", swaps.blocks, digits=0)
    yield _row(f"{name} copy time (ms)", swaps.total_ns, scale=_NS_PER_MS)
    interval = "" if swaps.interval is None else "{:.3f} to {:.3f}".format(*swaps.interval)
    yield _row(
        f"{name} copy time, same ops (ms)", swaps.same_ops, scale=_NS_PER_MS, interval=interval
    )


def _row(
    name: str, pair: Pair, *, scale: float = 1, digits: int = 2, interval: str = ""
) -> tuple[str, ...]:
    ratio = "-" if pair.ratio is None else f"{pair.ratio:.3f}"
    numbers = [f"{value / scale:,.{digits}f}" for value in pair]
    return (name, *numbers, ratio, interval)
