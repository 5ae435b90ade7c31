"""How fast blocks move between two tiers of this machine, and how fast anything could.

`measure_copies` times the swap engine itself: the memory of a rank, its layout, its copier; no
controller, no queue. `measure_ceiling` times one large contiguous copy between the same pools.
`fit_link` makes a link of such times, for the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from threading import Barrier, Thread
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kvsim.backends.paddle.arenas import CudaArena, HostArena
from kvsim.backends.paddle.copier import HostCopier
from kvsim.backends.paddle.cuda import CudaCopier
from kvsim.backends.paddle.cudart import Cuda
from kvsim.backends.paddle.layout import Layout
from kvsim.backends.paddle.memory import RankMemory
from kvsim.backends.paddle.orders import TransferOrder
from kvsim.backends.paddle.pool import check_memory
from kvsim.backends.paddle.runtime import device_index
from kvsim.backends.paddle.shape import KVShape
from kvsim.core.ops import Gate, Place
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kvsim.backends.paddle.copier import Copier, Copy, Rows
    from kvsim.backends.region import Region

_GPU: Final = Place(instance=0, tier=0)
_HOST: Final = Place(instance=0, tier=1)

NUM_LAYERS: Final = 8
"""Of the blocks that are measured: a block of 1 MiB has layers of 128 KiB."""
_HEAD_DIM: Final = 128
BLOCK_STEP_BYTES: Final = NUM_LAYERS * 2 * _HEAD_DIM * 2
"""K and V of one head and one token in bf16, in all layers: blocks are a multiple of it."""


class Direction(StrEnum):
    """Which way blocks move."""

    UP = "up"
    """From the host to the nearest tier: a swap-in."""
    DOWN = "down"
    BOTH = "both"
    """As many blocks each way, at once."""


class Unit(StrEnum):
    """What a rank copies in one go."""

    BLOCK = "block"
    """Whole blocks: a write-back, which nobody waits for layer by layer."""
    LAYER = "layer"
    """A layer of all blocks, then the next: a swap-in that computing overlaps with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTimes:
    """How long one transfer took, each time it was measured.

    `num_blocks` each way; `num_bytes` in all. `times_ns` are in the order they were measured.
    """

    direction: Direction
    layout: Layout
    unit: Unit
    block_bytes: int
    num_blocks: int
    num_bytes: int
    times_ns: tuple[int, ...]

    @property
    def median_ns(self) -> int:
        """The time in the middle."""
        return sorted(self.times_ns)[len(self.times_ns) // 2]

    @property
    def bytes_per_second(self) -> int:
        """Bytes moved in a second, at the time in the middle."""
        return self.num_bytes * 10**9 // self.median_ns


class LinkFit(NamedTuple):
    """A transfer takes `latency_ns`, and `1 / bytes_per_second` for each byte.

    `error_percent` is the largest deviation of a measured time from that, in percent of it.
    """

    latency_ns: int
    bytes_per_second: int
    error_percent: float


def shape_of(block_bytes: int) -> KVShape:
    """Return a shape of 8 layers whose blocks have so many bytes.

    Raises
    ------
    ConfigError
        If that is no multiple of `BLOCK_STEP_BYTES`.
    """
    if block_bytes < 1 or block_bytes % BLOCK_STEP_BYTES:
        raise ConfigError(
            f"a block to be measured has a multiple of {BLOCK_STEP_BYTES} bytes, not {block_bytes}"
        )
    return KVShape(
        name=f"{block_bytes} bytes",
        num_layers=NUM_LAYERS,
        num_kv_heads=1,
        block_size=block_bytes // BLOCK_STEP_BYTES,
        head_dim=_HEAD_DIM,
    )


class SwapRig:
    """Two tiers of one rank and a copier for each direction, with nothing else going on.

    On "gpu:N" the nearest tier is from `cudaMalloc` and the other is pinned memory of the host, so
    Paddle is not needed. Close it, or use it as a context.

    Parameters
    ----------
    shape
        Of a block.
    num_blocks
        Blocks of each tier; a transfer may have half of them.
    device
        "cpu" or "gpu:N".
    layout
        The order of the memory, in both tiers.
    cuda
        The CUDA runtime of that device; None: loaded.
    seed
        Of the block ids, which are scattered over both tiers.

    Raises
    ------
    ConfigError
        If the device is not there, or the memory does not suffice.
    """

    def __init__(
        self,
        shape: KVShape,
        num_blocks: int,
        *,
        device: str = "cpu",
        layout: Layout = Layout.BLOCK_MAJOR,
        cuda: Cuda | None = None,
        seed: int = 0,
    ) -> None:
        self.shape, self.num_blocks, self.layout = shape, num_blocks, layout
        num_bytes = shape.pool_bytes(num_blocks)
        check_memory(num_bytes * (2 if device == "cpu" else 1), ask_for="smaller transfers (mib)")
        self._host = HostArena(num_bytes)
        self._gpu: CudaArena | HostArena
        self._cuda: Cuda | None = None
        if device == "cpu":
            self._gpu = HostArena(num_bytes)
        else:
            self._cuda = Cuda(device_index(device)) if cuda is None else cuda
            self._host.pin(self._cuda)
            self._gpu = CudaArena(self._cuda, num_bytes)
        # On the CPU each direction has a thread of its own when both are measured at once.
        self._memories = [self._memory()] * 2
        if self._cuda is None:
            self._memories[1] = self._memory()
        self._copiers: list[Copier] = [HostCopier(), HostCopier()]
        if self._cuda is not None:
            self._copiers = [CudaCopier(self._cuda)] * 2
        self._rng = np.random.default_rng(seed)

    def __enter__(self) -> SwapRig:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Give the memory back."""
        for memory in self._memories:
            memory.close()
        for copier in self._copiers:
            copier.close()
        self._gpu.close()
        self._host.close()

    def swap_ns(self, direction: Direction, num_blocks: int, unit: Unit = Unit.BLOCK) -> int:
        """Move blocks, other ones each time; return how long it took.

        The bytes are there after that time. It does not include the choice of the blocks.

        Raises
        ------
        ConfigError
            If there are fewer than twice as many blocks in a tier.
        """
        if 2 * num_blocks > self.num_blocks:
            raise ConfigError(
                f"a tier of {self.num_blocks} blocks has not the {2 * num_blocks} that"
                f" {num_blocks} blocks each way need"
            )
        ids = [self._rng.permutation(self.num_blocks)[: 2 * num_blocks] for _ in range(2)]
        orders = {
            Direction.UP: copy_order(_HOST, _GPU, ids[0][:num_blocks], ids[1][:num_blocks]),
            Direction.DOWN: copy_order(_GPU, _HOST, ids[1][num_blocks:], ids[0][num_blocks:]),
        }
        wanted = [each for way, each in orders.items() if direction in (way, Direction.BOTH)]
        return self._time(
            [
                _steps(memory, order, unit)
                for memory, order in zip(self._memories, wanted, strict=False)
            ]
        )

    def contiguous_ns(self, direction: Direction) -> int:
        """Copy one half of a tier in one piece, or the other half back; return how long it took."""
        half = self.shape.pool_bytes(self.num_blocks) // 2 // 8 * 8
        up = _half(self._host.region, half, 0), _half(self._gpu.region, half, 0)
        down = _half(self._gpu.region, half, 1), _half(self._host.region, half, 1)
        wanted = [
            pair
            for way, pair in ((Direction.UP, up), (Direction.DOWN, down))
            if direction in (way, Direction.BOTH)
        ]
        return self._time(
            [
                _whole(copier, source, target)
                for copier, (source, target) in zip(self._copiers, wanted, strict=False)
            ]
        )

    def _memory(self) -> RankMemory:
        copier: Copier = HostCopier() if self._cuda is None else CudaCopier(self._cuda)
        return RankMemory(
            rank=0,
            shape=self.shape,
            gpu=_GPU,
            pools={_GPU: self._gpu, _HOST: self._host},
            copier=copier,
            layout=self.layout,
        )

    def _time(self, works: Sequence[Iterable[Callable[[], Copy]]]) -> int:
        """Do the works at once, each in its order; return the time until the last is done."""
        if self._cuda is not None or len(works) == 1:
            began_at = perf_counter_ns()
            _run_together(works)
            return perf_counter_ns() - began_at
        barrier, ended_at = Barrier(len(works) + 1), []

        def work(steps: Iterable[Callable[[], Copy]]) -> None:
            barrier.wait()
            _run_together([steps])
            ended_at.append(perf_counter_ns())

        threads = [Thread(target=work, args=(steps,)) for steps in works]
        for thread in threads:
            thread.start()
        barrier.wait()
        began_at = perf_counter_ns()
        for thread in threads:
            thread.join()
        return max(ended_at) - began_at


def measure_copies(
    rig: SwapRig,
    *,
    counts: Sequence[int],
    directions: Sequence[Direction] = tuple(Direction),
    units: Sequence[Unit] = (Unit.BLOCK,),
    repeats: int = 5,
) -> list[CopyTimes]:
    """Time transfers of each number of blocks, each way; once more before, which is not counted.

    Parameters
    ----------
    counts
        Blocks of a transfer (each way), at most half of the blocks of a tier. 1 shows what a
        transfer costs besides its bytes.
    units
        Whether in whole blocks or layer by layer.

    Raises
    ------
    ConfigError
        If a count is too large.
    """
    found = []
    for unit in units:
        for direction in directions:
            for num_blocks in counts:
                times = [rig.swap_ns(direction, num_blocks, unit) for _ in range(repeats + 1)]
                num_ways = 2 if direction is Direction.BOTH else 1
                found.append(
                    CopyTimes(
                        direction=direction,
                        layout=rig.layout,
                        unit=unit,
                        block_bytes=rig.shape.block_bytes,
                        num_blocks=num_blocks,
                        num_bytes=num_ways * num_blocks * rig.shape.block_bytes,
                        times_ns=tuple(times[1:]),
                    )
                )
    return found


def measure_ceiling(rig: SwapRig, direction: Direction, *, repeats: int = 5) -> int:
    """Return the bytes a second of one large contiguous copy (each way): the median of several."""
    half = rig.shape.pool_bytes(rig.num_blocks) // 2 // 8 * 8
    num_bytes = half * (2 if direction is Direction.BOTH else 1)
    times = sorted([rig.contiguous_ns(direction) for _ in range(repeats + 1)][1:])
    return num_bytes * 10**9 // times[len(times) // 2]


def fit_link(measured: Sequence[CopyTimes]) -> LinkFit:
    """Return the link whose times are nearest to those of one direction, in relative terms.

    Least squares of the relative errors of the medians, so that small transfers count as much as
    large ones: the latency is in the former, the bandwidth in the latter.

    Raises
    ------
    ConfigError
        If there are fewer than two different sizes.
    """
    num_bytes = np.array([each.num_bytes for each in measured], np.float64)
    times_ns = np.array([each.median_ns for each in measured], np.float64)
    if len(set(num_bytes)) < 2:
        raise ConfigError("a link is fitted to transfers of at least two sizes")
    columns = np.stack([1 / times_ns, num_bytes / times_ns], axis=1)
    (latency_ns, byte_ns), *_ = np.linalg.lstsq(columns, np.ones(len(times_ns)), rcond=None)
    if latency_ns < 0 or byte_ns <= 0:  # of the lines that are possible, one through the origin
        latency_ns = 0.0
        byte_ns = 1 / float(np.mean(num_bytes / times_ns))
    fitted_ns = latency_ns + byte_ns * num_bytes
    error = float(np.abs(fitted_ns / times_ns - 1).max())
    return LinkFit(round(latency_ns), round(10**9 / byte_ns), round(100 * error, 2))


def copy_order(source: Place, target: Place, source_ids: Rows, target_ids: Rows) -> TransferOrder:
    """Return an order to copy blocks that waits for nothing."""
    return TransferOrder(
        op_id=0,
        after=(),
        gate=Gate.OP,
        deadline_at=None,
        source=source,
        target=target,
        source_ids=source_ids,
        target_ids=target_ids,
    )


def _steps(memory: RankMemory, order: TransferOrder, unit: Unit) -> Iterator[Callable[[], Copy]]:
    if unit is Unit.BLOCK:
        yield lambda: memory.copy_blocks(order)
        return
    for layer in range(memory.num_layers):
        yield lambda layer=layer: memory.copy_layer(order, layer)  # type: ignore[misc]


def _half(region: Region, num_bytes: int, index: int) -> Region:
    return type(region)(region.ptr + index * num_bytes, num_bytes, region.kind)


def _whole(copier: Copier, source: Region, target: Region) -> Iterator[Callable[[], Copy]]:
    yield lambda: copier.start(source, None, target, None, num_rows=1, row_bytes=source.num_bytes)


def _run_together(works: Sequence[Iterable[Callable[[], Copy]]]) -> None:
    """Start each work's steps in turn, and wait until all are done, asking again and again."""
    under_way = [step() for work in works for step in work]
    while under_way:
        if under_way[-1].is_done():
            under_way.pop()
