"""Checks and measures the copies of this machine's GPU, in at most three minutes.

`python -m kvsim.backends.paddle.gpu_check` needs a checkout, numpy and cuda-bindings, no more. With
Paddle, its memory and its streams are checked as well; without, the report says that they were not.
One JSON value goes to stdout and to `gpu_check.json`; the measured link to `gpu_link.toml`, a run
file for `kvsim replay --config`.

Exit code 0: all copies are right; 1: some are not; 2: there is no GPU, or no bindings.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from kvsim.backends.paddle.arenas import CudaArena, HostArena
from kvsim.backends.paddle.bench import (
    CopyTimes,
    Direction,
    SwapRig,
    Unit,
    copy_order,
    fit_link,
    measure_copies,
    shape_of,
)
from kvsim.backends.paddle.bench_process import BenchSpec, measure
from kvsim.backends.paddle.copier import CopyError
from kvsim.backends.paddle.cuda import CudaCopier
from kvsim.backends.paddle.cudart import Cuda
from kvsim.backends.paddle.gpu_overlap import measure_overlap
from kvsim.backends.paddle.layout import Layout, fitted
from kvsim.backends.paddle.memory import RankMemory, Tally
from kvsim.backends.paddle.orders import Blocks, ForwardOrder, Slots
from kvsim.backends.paddle.pool import KVPool
from kvsim.backends.paddle.runtime import load_paddle
from kvsim.backends.paddle.shape import find_shape
from kvsim.core.ops import Gate, Place
from kvsim.errors import ConfigError, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.backends.paddle.memory import Memory
    from kvsim.backends.paddle.shape import KVShape

_GPU: Final = Place(instance=0, tier=0)
_HOST: Final = Place(instance=0, tier=1)
_NOTHING: Final = Blocks(np.empty(0, np.int64), np.empty(0, np.int64))
_NO_SLOTS: Final = Slots(*(np.empty(0, np.int64) for _ in range(4)))

_SHAPES: Final = ("tiny", "tiny-mla", "small")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured, and how many blocks of each shape are checked."""

    block_kib: tuple[int, ...] = (64, 256, 1024, 4096)
    mib: int = 256
    repeats: int = 5
    counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    num_blocks: int = 64


def run_checks(cuda: Cuda, *, effort: Effort, has_paddle: bool) -> dict[str, object]:
    """Check and measure; return the report, a JSON value.

    Parameters
    ----------
    cuda
        The device.
    has_paddle
        Whether to check Paddle's memory as well.
    """
    began = perf_counter()
    device = f"gpu:{cuda.device_index}"
    problems = list(_problems(cuda, device, effort.num_blocks, has_paddle=has_paddle))
    report: dict[str, object] = {
        "device": _describe(cuda),
        "paddle": load_paddle().__version__ if has_paddle else "Paddle not exercised",
        "copies_are_right": not problems,
        "problems": problems,
    }
    if problems:  # how fast wrong copies are is of no interest
        return report
    report["bandwidth"] = measure(
        BenchSpec(
            block_bytes=tuple(kib << 10 for kib in effort.block_kib),
            layouts=tuple(layout.value for layout in Layout),
            directions=tuple(direction.value for direction in Direction),
            device=device,
            bytes_each_way=effort.mib << 20,
            repeats=effort.repeats,
            seed=0,
        ),
        cuda=cuda,
    )
    report["overlap"] = measure_overlap(cuda, num_blocks=effort.mib, repeats=effort.repeats)
    report["link"] = measure_link(cuda, device, effort)
    report["took_s"] = round(perf_counter() - began, 1)
    return report


def measure_link(cuda: Cuda, device: str, effort: Effort) -> dict[str, dict[str, float]]:
    """Return the link between the tiers, each way, from transfers of blocks of 1 MiB."""
    with SwapRig(shape_of(1 << 20), 2 * max(effort.counts), device=device, cuda=cuda) as rig:
        times = measure_copies(
            rig, counts=effort.counts, repeats=effort.repeats, units=(Unit.BLOCK,)
        )

    def fitted(direction: Direction) -> dict[str, float]:
        mine: list[CopyTimes] = [each for each in times if each.direction is direction]
        return fit_link(mine)._asdict()

    return {direction.value: fitted(direction) for direction in Direction}


def link_toml(link: dict[str, dict[str, float]], name: str) -> str:
    """Return a run file with the measured link.

    The slower direction counts. The link is full duplex if both ways at once are faster than either
    alone by half.
    """
    one_way = min(link[each.value]["bytes_per_second"] for each in (Direction.UP, Direction.DOWN))
    latency = max(link[each.value]["latency_ns"] for each in (Direction.UP, Direction.DOWN))
    is_duplex = link[Direction.BOTH.value]["bytes_per_second"] > 1.5 * one_way
    return (
        "[hardware]\n"
        'base = "h200-8x"\n'
        f"name = {json.dumps(name)}\n\n"
        "[hardware.host_link]\n"
        f"bytes_per_second = {round(one_way)}\n"
        f"latency_ns = {round(latency)}\n"
        "overhead_ns = 0\n"
        f"full_duplex = {'true' if is_duplex else 'false'}\n"
    )


# -- correctness


def _problems(cuda: Cuda, device: str, num_blocks: int, *, has_paddle: bool) -> Iterator[str]:
    """Yield what is wrong with copies, of every shape, layout and kind of memory."""
    yield from _wrong_rows(cuda)
    for name in _SHAPES:
        for layout in Layout:
            for dtype in ("bfloat16", "uint8"):
                shape = replace(find_shape(name), dtype=dtype, num_extra_layers=1, expand_ratio=1.5)
                where = f"{name}, {layout}, {dtype}"
                arena = CudaArena(cuda, shape.pool_bytes(num_blocks))
                yield from _wrong_blocks(cuda, shape, layout, arena, f"{where}, cudaMalloc")
                arena.close()
                if has_paddle:
                    pool = KVPool(shape, num_blocks, device=device, layout=layout)
                    yield from _wrong_blocks(cuda, shape, layout, pool, f"{where}, Paddle")


def _wrong_rows(cuda: Cuda) -> Iterator[str]:
    """Move random rows up, within the GPU, and down again; compare every bit of the whole pool."""
    rng = np.random.default_rng(0)
    for row_bytes, num_rows in ((64, 4096), (128 << 10, 96), (2 << 20, 12)):
        num_bytes = row_bytes * num_rows
        host, back = HostArena(num_bytes), HostArena(num_bytes)
        for arena in (host, back):
            arena.pin(cuda)
        one, other = CudaArena(cuda, num_bytes), CudaArena(cuda, num_bytes)
        host.bytes[:] = rng.integers(0, 256, num_bytes, np.uint8)
        copier = CudaCopier(cuda)
        expected = np.zeros((num_rows, row_bytes), np.uint8)
        num = num_rows // 2
        ids = [rng.permutation(num_rows)[:num] for _ in range(4)]
        ids[1].sort()  # neighbours on one side only
        regions = [host.region, one.region, other.region, back.region]
        for step in range(3):
            # What the first copy wrote is what the second reads, and so on.
            copier.copy(
                regions[step], ids[step], regions[step + 1], ids[step + 1],
                num_rows=num, row_bytes=row_bytes,
            )  # fmt: skip
        expected[ids[3]] = host.bytes.reshape(num_rows, row_bytes)[ids[0]]
        num_wrong = int(np.count_nonzero(back.bytes.reshape(num_rows, row_bytes) != expected))
        if num_wrong:
            yield f"rows of {row_bytes} bytes: {num_wrong} wrong bytes after up, within, down"
        copier.close()
        for memory in (one, other, host, back):
            memory.close()


def _wrong_blocks(
    cuda: Cuda, shape: KVShape, layout: Layout, gpu: Memory, where: str
) -> Iterator[str]:
    """Write blocks, move them down and up to other places, and read every byte."""
    num_bytes = gpu.region.num_bytes
    num_blocks = fitted(shape, num_bytes, layout).num_blocks
    host = HostArena(num_bytes)
    host.pin(cuda)
    memory = RankMemory(
        rank=0,
        shape=shape,
        gpu=_GPU,
        pools={_GPU: gpu, _HOST: host},
        copier=CudaCopier(cuda),
        layout=layout,
    )
    rng, tally = np.random.default_rng(1), Tally()
    first, below, last = (rng.permutation(num_blocks)[: num_blocks // 2] for _ in range(3))
    seeds = rng.integers(-(2**63), 2**63 - 1, len(first))
    _forward(memory, tally, writes=Blocks(first, seeds))
    down = memory.copy_blocks(copy_order(_GPU, _HOST, first, below))
    while not down.is_done():
        pass
    _forward(memory, tally, writes=Blocks(np.arange(num_blocks), np.zeros(num_blocks, np.int64)))
    order = copy_order(_HOST, _GPU, below, last)
    up = [memory.copy_layer(order, layer) for layer in range(memory.num_layers)]
    while not all(layer.is_done() for layer in up):
        pass
    _forward(memory, tally, reads=Blocks(last, seeds))
    memory.close()
    host.close()
    if tally.num_wrong_bytes:
        yield f"{where}: {tally.num_wrong_bytes} wrong bytes; {tally.first_wrong}"


def _forward(
    memory: RankMemory, tally: Tally, *, writes: Blocks = _NOTHING, reads: Blocks = _NOTHING
) -> None:
    order = ForwardOrder(
        op_id=0,
        after=(),
        gate=Gate.OP,
        deadline_at=None,
        step_ends_ns=(0,),
        writes=writes,
        slot_writes=_NO_SLOTS,
        reads=reads,
        slot_reads=_NO_SLOTS,
        peeks=_NOTHING,
        num_checked_blocks=0,
    )
    for layer in range(memory.num_layers):
        memory.compute_layer(order, tally, layer)


# -- the command


class _OneLineParser(argparse.ArgumentParser):
    """Raises where argparse would print the usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see --help)")


def _describe(cuda: Cuda) -> dict[str, object]:
    (properties,) = cuda.call("cudaGetDeviceProperties", cuda.device_index)
    (driver,) = cuda.call("cudaDriverGetVersion")
    return {
        "name": properties.name.decode().rstrip("\0"),
        "memory_bytes": int(properties.totalGlobalMem),
        "driver": int(driver),
        "bindings_major": cuda.major,
        "batch_copies": cuda.has_batches(),
    }


def _find_paddle() -> bool:
    """Whether Paddle is there and sees a GPU. A build for CUDA says so of itself without one."""
    try:
        return bool(load_paddle().device.cuda.device_count())
    except ConfigError:
        return False


def _save(report: dict[str, object], folder: Path) -> None:
    """Write the files; each is renamed into its place when it is whole."""
    files = {"gpu_check.json": json.dumps(report, indent=1) + "\n"}
    link = report.get("link")
    if isinstance(link, dict):
        device = report["device"]
        name = str(device["name"]) if isinstance(device, dict) else "measured"
        files["gpu_link.toml"] = link_toml(link, name)
    for name, text in files.items():
        with tempfile.TemporaryDirectory(prefix=".kvsim-", dir=folder) as temporary:
            made = Path(temporary) / name
            made.write_text(text, encoding="utf-8")
            made.replace(folder / name)


def main(
    argv: Sequence[str] | None = None,
    *,
    bindings: tuple[Any, int] | None = None,
    effort: Effort | None = None,
) -> int:
    """Run the command; return its exit code. `bindings` are those of a `Cuda`."""
    parser = _OneLineParser(
        prog="python -m kvsim.backends.paddle.gpu_check",
        description="Check and measure the copies of this machine's GPU.",
    )
    parser.add_argument("--device", type=int, default=0, metavar="N", help="the GPU; default: 0")
    parser.add_argument("--out", default=".", metavar="DIR", help="folder for the files")
    try:
        arguments = parser.parse_args(argv)
        cuda = Cuda(arguments.device, bindings=bindings)
        num_devices = cuda.count_devices()
        if not 0 <= arguments.device < num_devices:
            raise ConfigError(f"there is no GPU {arguments.device}: CUDA sees {num_devices}")
        if not Path(arguments.out).is_dir():
            raise ConfigError(f"--out {arguments.out}: there is no such folder")
        report = run_checks(
            cuda, effort=effort or Effort(), has_paddle=bindings is None and _find_paddle()
        )
        _save(report, Path(arguments.out))
    except (UserError, CopyError, OSError) as error:
        sys.stderr.write(f"gpu_check: {error}\n")
        return 2
    sys.stdout.write(json.dumps(report) + "\n")
    return 0 if report["copies_are_right"] else 1


if __name__ == "__main__":
    sys.exit(main())
