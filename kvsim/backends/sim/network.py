"""A network of hops whose bandwidth is shared fairly by flows that cross several of them.

Each flow has the same rate on all hops of its path. Rates are max-min fair: no flow can have more
without taking from one that has no more than it. They change only when a flow enters or leaves,
and are whole numbers of 1/720,720 byte a nanosecond and GB/s, rounded down, so that the same input
gives the same times everywhere. On a path of one hop this is the fair share of `links.Link`.

Source: Bertsekas and Gallager 1992 (Data Networks), section 6.5.2 (max-min fairness, filling).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.backends.sim.layers import LayerCurve
from kvsim.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.types import OpId

SCALE: Final = 720_720
"""As in `kvsim.backends.sim.links`: up to 16 flows share a hop without a remainder."""

_UNITS_PER_BYTE: Final = SCALE * 10**9


class Hop:
    """One direction of one wire.

    Attributes
    ----------
    name
        For people: "nic out of prefill 0, rank 1".
    bytes_per_second
        What passes at most.
    """

    __slots__ = ("_passed", "bytes_per_second", "index", "name", "units_per_ns")

    def __init__(self, index: int, name: str, bytes_per_second: int) -> None:
        self.index = index
        self.name = name
        self.bytes_per_second = bytes_per_second
        self.units_per_ns = bytes_per_second * SCALE
        self._passed = 0

    @property
    def passed_bytes(self) -> int:
        """Bytes that have passed up to the last change of the network, rounded down."""
        return self._passed // _UNITS_PER_BYTE

    def count(self, units: int) -> None:
        """Add what has just passed."""
        self._passed += units


class Stream:
    """The bytes of one op on one path: a flow of the network.

    Attributes
    ----------
    rate
        Units a nanosecond since the last change.
    """

    __slots__ = ("_sent", "_times", "_total", "is_open", "op_id", "order", "path", "rate")

    def __init__(
        self, op_id: OpId, path: tuple[Hop, ...], num_bytes: int, now: int, order: int
    ) -> None:
        self.op_id = op_id
        self.path = path
        self.order = order
        self.rate = 0
        self.is_open = True
        self._total = num_bytes * _UNITS_PER_BYTE
        self._times = [now]
        self._sent = [0]

    @property
    def left(self) -> int:
        """Units that have not passed."""
        return self._total - self._sent[-1]

    def advance(self, now: int, span_ns: int) -> None:
        """Let `span_ns` pass up to `now`."""
        units = min(self.rate * span_ns, self.left)
        self._times.append(now)
        self._sent.append(self._sent[-1] + units)
        for hop in self.path:
            hop.count(units)

    def curve(self) -> LayerCurve:
        """Return how far the stream was at each time up to now."""
        return LayerCurve(self._times, self._sent, self._total)


class Network:
    """Hops and the streams on them. Time only moves forward.

    A stream leaves at the first whole nanosecond at which its last byte has passed, and has its
    share until then. `ticket` changes whenever `next_end_at` may have.
    """

    __slots__ = ("_last_at", "_num_entered", "_streams", "hops", "ticket")

    def __init__(self) -> None:
        self.hops: list[Hop] = []
        self.ticket = 0
        self._streams: list[Stream] = []
        self._last_at = 0
        self._num_entered = 0

    def add_hop(self, name: str, bytes_per_second: int) -> Hop:
        """Lay one more wire."""
        hop = Hop(len(self.hops), name, bytes_per_second)
        self.hops.append(hop)
        return hop

    def enter(self, op_id: OpId, path: Sequence[Hop], num_bytes: int, now: int) -> Stream:
        """Let a stream of `num_bytes` in; return it.

        Raises
        ------
        MisuseError
            If the path is empty, or crosses a hop twice.
        """
        if not path or len(set(path)) != len(path):
            raise MisuseError(f"a path must cross each hop once, not {[hop.name for hop in path]}")
        self._advance(now)
        stream = Stream(op_id, tuple(path), num_bytes, now, self._num_entered)
        self._num_entered += 1
        self._streams.append(stream)
        self._share()
        return stream

    def leave(self, stream: Stream, now: int) -> None:
        """Take `stream` off before its end. No effect if it has left."""
        if stream.is_open:
            self._advance(now)
            stream.is_open = False
            self._streams.remove(stream)
            self._share()

    def finish(self, now: int) -> list[Stream]:
        """Take off the streams whose last byte has passed at `now`; return them, oldest first."""
        self._advance(now)
        ended = [stream for stream in self._streams if not stream.left]
        for stream in ended:
            stream.is_open = False
        if ended:
            self._streams = [stream for stream in self._streams if stream.is_open]
        self._share()
        return ended

    def next_end_at(self) -> int | None:
        """Return when the next stream leaves if none comes before; None if there is none."""
        if not self._streams:
            return None
        return self._last_at + min(-(-s.left // s.rate) for s in self._streams)

    def _advance(self, now: int) -> None:
        span_ns = now - self._last_at
        self._last_at = now
        if span_ns:
            for stream in self._streams:
                stream.advance(now, span_ns)

    def _share(self) -> None:
        """Give every stream its rate: fill all alike, and stop those whose hop is full."""
        self.ticket += 1
        crossing: dict[Hop, list[Stream]] = {}
        for stream in self._streams:
            for hop in stream.path:
                crossing.setdefault(hop, []).append(stream)
        room = {hop: hop.units_per_ns for hop in crossing}
        num_open = {hop: len(streams) for hop, streams in crossing.items()}
        done: set[Stream] = set()
        while num_open:
            fullest = min(num_open, key=lambda hop: (room[hop] // num_open[hop], hop.index))
            share = room[fullest] // num_open[fullest]
            for stream in crossing[fullest]:
                if stream in done:
                    continue
                done.add(stream)
                stream.rate = share
                for hop in stream.path:
                    room[hop] -= share
                    num_open[hop] -= 1
                    if not num_open[hop]:
                        del num_open[hop]
