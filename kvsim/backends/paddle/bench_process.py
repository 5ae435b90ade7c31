"""The measurements of `kvsim.bench_transfer`, in a process of their own.

So nothing else shares their interpreter, and how memory is copied can be set before they begin.
Reads one JSON value from stdin, a `BenchSpec`, and writes one to stdout.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypedDict

from kvsim.backends.paddle.bench import CopyTimes, Direction, SwapRig, Unit, shape_of
from kvsim.backends.paddle.copier import CopyError
from kvsim.backends.paddle.layout import Layout
from kvsim.errors import UserError

if TYPE_CHECKING:
    from kvsim.backends.paddle.cudart import Cuda


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSpec:
    """What is to be measured: every block size in every layout, each way.

    `bytes_each_way` of a transfer, rounded down to whole blocks, at least one.
    """

    block_bytes: tuple[int, ...]
    layouts: tuple[str, ...]
    directions: tuple[str, ...]
    device: str
    bytes_each_way: int
    repeats: int
    seed: int


class BenchRow(TypedDict):
    """One transfer, and one large contiguous copy of as many bytes, taken in turn.

    Rates are in bytes a second, both ways together, at the median time. `percent_of_ceiling` is the
    median over the repetitions: what happens to the machine meanwhile happens to both.
    """

    layout: str
    unit: str
    direction: str
    block_bytes: int
    num_blocks: int
    bytes_per_second: int
    ceiling_bytes_per_second: int
    percent_of_ceiling: float
    times_ns: list[int]
    ceiling_times_ns: list[int]


def measure(spec: BenchSpec, *, cuda: Cuda | None = None) -> list[BenchRow]:
    """Measure all of it.

    Raises
    ------
    UserError
        If the device is not there, or the memory does not suffice.
    """
    rows = []
    for name in spec.layouts:
        layout = Layout(name)
        # A layer of a layer-major pool is as far from the next as a block is.
        units = tuple(Unit) if layout is Layout.BLOCK_MAJOR else (Unit.BLOCK,)
        for block_bytes in spec.block_bytes:
            num_blocks = max(1, spec.bytes_each_way // block_bytes)
            with SwapRig(
                shape_of(block_bytes),
                2 * num_blocks,
                device=spec.device,
                layout=layout,
                cuda=cuda,
                seed=spec.seed,
            ) as rig:
                rows += [
                    compared(rig, Direction(direction), num_blocks, unit, repeats=spec.repeats)
                    for unit in units
                    for direction in spec.directions
                ]
    return rows


def compared(
    rig: SwapRig, direction: Direction, num_blocks: int, unit: Unit, *, repeats: int
) -> BenchRow:
    """Time a transfer and, before and after it, a contiguous copy of as many bytes."""
    rig.swap_ns(direction, num_blocks, unit)
    before_ns = rig.contiguous_ns(direction)
    times_ns, ceilings_ns = [], []
    for _ in range(repeats):
        times_ns.append(rig.swap_ns(direction, num_blocks, unit))
        after_ns = rig.contiguous_ns(direction)
        ceilings_ns.append((before_ns + after_ns) // 2)
        before_ns = after_ns
    num_bytes = rig.shape.block_bytes * num_blocks * (2 if direction is Direction.BOTH else 1)
    shares = sorted(100 * c / t for c, t in zip(ceilings_ns, times_ns, strict=True))
    times = CopyTimes(
        direction=direction,
        layout=rig.layout,
        unit=unit,
        block_bytes=rig.shape.block_bytes,
        num_blocks=num_blocks,
        num_bytes=num_bytes,
        times_ns=tuple(times_ns),
    )
    return {
        "layout": rig.layout.value,
        "unit": unit.value,
        "direction": direction.value,
        "block_bytes": times.block_bytes,
        "num_blocks": num_blocks,
        "bytes_per_second": times.bytes_per_second,
        "ceiling_bytes_per_second": num_bytes * 10**9 // sorted(ceilings_ns)[repeats // 2],
        "percent_of_ceiling": round(shares[repeats // 2], 1),
        "times_ns": times_ns,
        "ceiling_times_ns": ceilings_ns,
    }


def spec_to_json(spec: BenchSpec) -> str:
    """Return a spec as text."""
    return json.dumps(asdict(spec))


def spec_from_json(text: str) -> BenchSpec:
    """Return what `spec_to_json` made a text of."""
    fields = json.loads(text)
    for name in ("block_bytes", "layouts", "directions"):
        fields[name] = tuple(fields[name])
    return BenchSpec(**fields)


def main() -> int:
    """Measure what stdin says; 2 and a line on stderr if it cannot be."""
    try:
        rows = measure(spec_from_json(sys.stdin.read()))
    except (UserError, CopyError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except MemoryError:
        sys.stderr.write("not enough memory: ask for less (mib)\n")
        return 2
    json.dump(rows, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
