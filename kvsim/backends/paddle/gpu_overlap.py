"""Whether swaps and computing go on at the same time on a GPU, and layer by layer."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.backends.paddle.arenas import CudaArena, HostArena
from kvsim.backends.paddle.bench import NUM_LAYERS, shape_of
from kvsim.backends.paddle.cuda import CudaCopier
from kvsim.backends.paddle.layout import PlacedPool, PoolLayout

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.paddle.copier import Rows
    from kvsim.backends.paddle.cuda import CudaCopy
    from kvsim.backends.paddle.cudart import Cuda
    from kvsim.backends.paddle.layout import Piece

_BLOCK_BYTES: Final = 1 << 20
_MOST_LAUNCHES: Final = 4096


def measure_overlap(cuda: Cuda, *, num_blocks: int, repeats: int) -> dict[str, float]:
    """Time a swap-in of blocks of 1 MiB, a computation as long as it, and both.

    The computation is copies within the GPU on a stream of its own: what they take of the memory's
    bandwidth is what attention would, and no compiler is needed.

    Returns
    -------
    In microseconds: `swap`, `compute`, `together` (both started at once) and `by_layer` (each of 8
    layers of the computation waits for its layer of the swap, by an event; the host waits for
    nothing in between). `overlap_percent`: how much of the shorter one was hidden.
    """
    bench = _OverlapBench(cuda, num_blocks)
    try:
        swap_ns = bench.time(bench.swap, repeats)
        one_ns = bench.time(lambda: bench.compute(1), repeats)
        num_launches = min(max(1, round(swap_ns / max(one_ns, 1))), _MOST_LAUNCHES)
        num_launches = -(-num_launches // NUM_LAYERS) * NUM_LAYERS
        compute_ns = bench.time(lambda: bench.compute(num_launches), repeats)
        together_ns = bench.time(lambda: bench.swap_and_compute(num_launches), repeats)
        by_layer_ns = bench.time(lambda: bench.swap_by_layer(num_launches), repeats)
    finally:
        bench.close()
    hidden_ns = swap_ns + compute_ns - together_ns
    return {
        "swap_us": swap_ns / 1000,
        "compute_us": compute_ns / 1000,
        "together_us": together_ns / 1000,
        "by_layer_us": by_layer_ns / 1000,
        "overlap_percent": round(100 * hidden_ns / max(min(swap_ns, compute_ns), 1), 1),
    }


class _OverlapBench:
    """Two tiers, and a stream that computes."""

    def __init__(self, cuda: Cuda, num_blocks: int) -> None:
        shape = shape_of(_BLOCK_BYTES)
        num_bytes = shape.pool_bytes(num_blocks)
        self._cuda = cuda
        self._host, self._gpu = HostArena(num_bytes), CudaArena(cuda, num_bytes)
        self._host.pin(cuda)
        self._work = CudaArena(cuda, 64 << 20)
        self._copier = CudaCopier(cuda)
        self._stream = cuda.new_stream()
        layout = PoolLayout(shape, num_blocks)
        self._tiers = (
            PlacedPool(self._host.region, layout),
            PlacedPool(self._gpu.region, layout),
        )
        rng = np.random.default_rng(0)
        self._ids: tuple[Rows, Rows] = (rng.permutation(num_blocks), rng.permutation(num_blocks))

    def time(self, work: Callable[[], object], repeats: int) -> int:
        """Return the median time in which all that `work` starts is done; once more before."""
        times = []
        for _ in range(repeats + 1):
            began_at = perf_counter_ns()
            work()
            self._cuda.call("cudaDeviceSynchronize")
            times.append(perf_counter_ns() - began_at)
            self._copier.drain()  # nobody has asked the copies whether they are done
        return sorted(times[1:])[repeats // 2]

    def swap(self) -> None:
        """Start to copy whole blocks up."""
        source, target = self._tiers
        self._start(source.blocks[0], target.blocks[0])

    def compute(self, num_launches: int) -> None:
        """Start a computation."""
        half = self._work.region.num_bytes // 2
        for _ in range(num_launches):
            self._cuda.copy(self._work.region.ptr + half, self._work.region.ptr, half, self._stream)

    def swap_and_compute(self, num_launches: int) -> None:
        """Start both, neither waiting for the other."""
        self.swap()
        self.compute(num_launches)

    def swap_by_layer(self, num_launches: int) -> None:
        """Start to copy layer by layer, and to compute each layer as it comes."""
        source, target = self._tiers
        layers = zip(source.layers, target.layers, strict=True)
        copies = [self._start(here[0], there[0]) for here, there in layers]
        for copy in copies:
            self._copier.lead(self._stream, copy)
            self.compute(num_launches // NUM_LAYERS)

    def close(self) -> None:
        """Give all of it back."""
        self._copier.close()
        self._cuda.call("cudaStreamDestroy", self._stream)
        for arena in (self._work, self._gpu, self._host):
            arena.close()

    def _start(self, here: Piece, there: Piece) -> CudaCopy:
        ids, others = self._ids
        return self._copier.start(
            here.region,
            here.pieces.rows(ids),
            there.region,
            there.pieces.rows(others),
            num_rows=len(ids),
            row_bytes=here.pieces.row_bytes,
        )
