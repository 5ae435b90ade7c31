"""A calibration that can be worked out by hand."""

from __future__ import annotations

from kvsim.calibration.fit import Line
from kvsim.calibration.result import Calibration, Conditions, Measured, Origin


def line(op_ns: float, block_ns: float) -> Line:
    """Return a line that goes through all of its points."""
    return Line(op_ns=op_ns, block_ns=block_ns, residual=0.0, tail_ns=0.0, num_samples=8)


def calibration(*, ranks: int = 2, duplex_factor: float = 1.0) -> Calibration:
    """Return one in which 1 ns passes 4096 bytes up, and 2048 bytes down."""
    return Calibration(
        base="a100-8x",
        conditions=Conditions(
            backend="paddle",
            shape="tiny",
            device="cpu",
            ranks=ranks,
            workers="threads",
            layout="block-major",
            rank_block_bytes=4096,
        ),
        origin=Origin(
            kvsim_version="0.1.0",
            python_version="3.11.7",
            paddle_version="3.3.1",
            machine='a "small" one, 2 cores',
            date="2026-01-02T03:04:05Z",
            took_s=3.5,
        ),
        swap_in=line(100_000.0, 1.0),
        swap_out=line(300_000.0, 2.0),
        step=line(1_000_000.0, 500.0),
        turn_ns=200_000,
        duplex_factor=duplex_factor,
        wait_ns=40_000,
        sizes=(Measured(1, 100_001, 300_002), Measured(2, 100_002, 300_004)),
    )
