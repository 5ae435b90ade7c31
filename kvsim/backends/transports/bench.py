"""How fast a transport moves blocks between two processes, against one contiguous copy.

A figure in bytes a second says as much of the machine and its load as of the transport. So every
repeat also moves the same bytes over the same medium as one piece, and the ratio is taken within
the repeat.
"""

from __future__ import annotations

import secrets
import statistics
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvsim.backends.transports import find_transport, open_transport
from kvsim.backends.transports.memory import MemoryFile
from kvsim.backends.transports.pieces import Pieces
from kvsim.backends.transports.ports import (
    KEY_BYTES,
    Connected,
    EndpointConfig,
    PeerId,
    TransportError,
    WriteDone,
    WriteFailed,
)
from kvsim.backends.transports.remote import PeerProcess
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.backends.transports.ports import Transport

_PATIENCE_NS: Final = 60 * 10**9
_ME: Final = PeerId(0, 0)
_PEER: Final = PeerId(1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What is measured.

    Parameters
    ----------
    block_bytes
        Lengths of a block.
    num_blocks
        In one write. Those of the published figures are 256.
    num_repeats
        Of which the median counts. Five, so that one disturbance does not.
    num_latencies
        Writes of one block, one at a time, of which the percentiles are taken.

    Raises
    ------
    ConfigError
        If a number is not positive, or the blocks need more than 4 GiB a side.
    """

    block_bytes: tuple[int, ...] = (64 << 10, 256 << 10, 1 << 20)
    num_blocks: int = 256
    num_repeats: int = 5
    num_latencies: int = 200

    def __post_init__(self) -> None:
        for name in ("num_blocks", "num_repeats", "num_latencies"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)}")
        if not self.block_bytes or min(self.block_bytes) < 1:
            raise ConfigError(f"a block has one byte or more, not {self.block_bytes}")
        if self.num_bytes > 4 << 30:
            raise ConfigError(
                f"{self.num_blocks} blocks of {max(self.block_bytes)} bytes are"
                f" {self.num_bytes / 2**30:.1f} GiB: ask for at most 4 GiB"
            )

    @property
    def num_bytes(self) -> int:
        """Length of the region of each side."""
        return self.num_blocks * max(self.block_bytes, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """The figures of one transport and one length of block.

    Parameters
    ----------
    transport, block_bytes, num_blocks
        What was moved.
    bytes_per_s
        Of the blocks, each to another place than its neighbours; median of the repeats.
    contiguous_bytes_per_s
        Of the same bytes as one piece; median of the repeats.
    ratio
        Of the two; median of the ratios within the repeats.
    p50_us, p99_us
        From the call of `write`, of one block with a tag, until its end is told.
    """

    transport: str
    block_bytes: int
    num_blocks: int
    bytes_per_s: float
    contiguous_bytes_per_s: float
    ratio: float
    p50_us: float
    p99_us: float

    def to_dict(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self)


def bench_transport(name: str, config: BenchConfig | None = None) -> list[BenchRow]:
    """Measure a transport between this process and another one, on this machine.

    Parameters
    ----------
    name
        Of the transport.
    config
        What is measured.

    Raises
    ------
    UserError
        If there is no such transport, or something it needs is not installed.
    TransportError
        If it fails.
    """
    config = BenchConfig() if config is None else config
    find_transport(name)
    key = secrets.token_bytes(KEY_BYTES)
    with (
        closing(open_transport(name, EndpointConfig(peer_id=_ME, key=key))) as endpoint,
        PeerProcess(name, _PEER, key, config.num_bytes) as peer,
        MemoryFile(config.num_bytes) as memory,
        closing(endpoint),  # before its memory
    ):
        endpoint.register(memory.region, memory_file=memory.file)
        endpoint.connect(_PEER, peer.description)
        bench = _Bench(endpoint)
        bench.wait_for_connection()
        return [bench.measure(name, size, config) for size in config.block_bytes]


class _Bench:
    def __init__(self, endpoint: Transport) -> None:
        self._endpoint = endpoint
        self._last_write_id = 0

    def wait_for_connection(self) -> None:
        events = self._endpoint.poll(_PATIENCE_NS)
        if list(events) != [Connected(_PEER)]:
            raise TransportError(f"no connection to the other process: {events}")

    def measure(self, name: str, block_bytes: int, config: BenchConfig) -> BenchRow:
        total = block_bytes * config.num_blocks
        # The last block first, so that no two are neighbours on both sides.
        places = np.arange(config.num_blocks, dtype=np.int64) * block_bytes
        blocks = Pieces(places, places[::-1].copy(), np.full_like(places, block_bytes))
        one_piece = Pieces.of([(0, 0, total)])
        for pieces in (blocks, one_piece):
            self._time_ns(pieces)  # the first finds caches and buffers empty
        repeats = [
            (total / self._time_ns(blocks) * 1e9, total / self._time_ns(one_piece) * 1e9)
            for _ in range(config.num_repeats)
        ]
        one_block = Pieces.of([(0, 0, block_bytes)])
        latencies = [self._time_ns(one_block) / 1e3 for _ in range(config.num_latencies)]
        return BenchRow(
            transport=name,
            block_bytes=block_bytes,
            num_blocks=config.num_blocks,
            bytes_per_s=statistics.median(fast for fast, _ in repeats),
            contiguous_bytes_per_s=statistics.median(whole for _, whole in repeats),
            ratio=statistics.median(fast / whole for fast, whole in repeats),
            p50_us=float(np.percentile(latencies, 50)),
            p99_us=float(np.percentile(latencies, 99)),
        )

    def _time_ns(self, pieces: Pieces) -> int:
        """Return how long a write takes, tag and all."""
        self._last_write_id += 1
        started_at = time.monotonic_ns()
        self._endpoint.write(
            _PEER,
            self._last_write_id,
            pieces,
            deadline_at=started_at + _PATIENCE_NS,
            tag=b"bench",
        )
        for event in self._events():
            if isinstance(event, WriteFailed):
                raise TransportError(f"a write failed: {event.reason}: {event.detail}")
            if isinstance(event, WriteDone):
                return time.monotonic_ns() - started_at
        raise TransportError("a write has no end")

    def _events(self) -> Iterator[Any]:
        give_up_at = time.monotonic_ns() + 2 * _PATIENCE_NS
        while time.monotonic_ns() < give_up_at:
            yield from self._endpoint.poll(_PATIENCE_NS)


def bench_rows(names: Sequence[str], config: BenchConfig | None = None) -> list[BenchRow]:
    """Measure several transports, one after the other."""
    return [row for name in names for row in bench_transport(name, config)]
