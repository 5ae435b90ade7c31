"""A link whose bandwidth is shared fairly, in exact integers.

Virtual time (the service that each flow has had since the link was last idle) rises by
`rate / number of flows`, so a flow that enters at V with b bytes leaves at V + b, whoever comes and
goes meanwhile: one heap entry a flow, and no flow is ever touched because of another.

Source: Kleinrock 1967 (processor sharing); Demers et al. 1989, section 2 (its virtual time).
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from kvsim.backends.sim.layers import LayerCurve

if TYPE_CHECKING:
    from kvsim.config import LinkConfig
    from kvsim.types import OpId

SCALE: Final = 720_720
"""lcm(1, ..., 16): up to 16 flows share without a remainder. With more, virtual time is rounded
down by less than 1 / (720,720 * 10**9) byte whenever a flow enters or leaves."""

_UNITS_PER_BYTE: Final = SCALE * 10**9
_MAX_HISTORY: Final = 4096


class Flow:
    """The bytes of one op on one link."""

    __slots__ = ("end_v", "entered_at", "is_open", "op_id", "start_v")

    def __init__(self, op_id: OpId, entered_at: int, start_v: int, end_v: int) -> None:
        self.op_id = op_id
        self.entered_at = entered_at
        self.start_v = start_v
        self.end_v = end_v
        self.is_open = True


class Link:
    """One direction of a full-duplex link, or both of a half-duplex one. Time only moves forward.

    A flow leaves at the first whole nanosecond at which its last byte has passed, and has its
    share until then. `ticket` changes whenever `next_end_at` may have.
    """

    __slots__ = (
        "_flows",
        "_history_at",
        "_history_v",
        "_last_at",
        "_num_flows",
        "_units_per_ns",
        "_virtual",
        "bytes_per_second",
        "entry_ns",
        "ticket",
    )

    def __init__(self, config: LinkConfig) -> None:
        self.entry_ns = config.latency_ns + config.overhead_ns
        self.bytes_per_second = config.bytes_per_second
        self.ticket = 0
        self._units_per_ns = config.bytes_per_second * SCALE
        self._flows: list[tuple[int, int, Flow]] = []
        self._num_flows = 0
        self._virtual = 0
        self._last_at = 0
        # Virtual time is a straight line between these; see `curve`.
        self._history_at: list[int] = []
        self._history_v: list[int] = []

    def enter(self, op_id: OpId, num_bytes: int, now: int) -> Flow:
        """Let a flow of `num_bytes` in (latency and overhead are behind it); return it."""
        if not self._num_flows:
            self._flows.clear()
            self._history_at.clear()
            self._history_v.clear()
            self._virtual = 0
        self._advance(now)
        start_v = self._virtual
        flow = Flow(op_id, now, start_v, start_v + num_bytes * _UNITS_PER_BYTE)
        heappush(self._flows, (flow.end_v, op_id, flow))
        self._num_flows += 1
        self.ticket += 1
        return flow

    def leave(self, flow: Flow, now: int) -> None:
        """Take `flow` off the link before its end. No effect if it has left."""
        if flow.is_open:
            self._advance(now)
            flow.is_open = False
            self._num_flows -= 1
            self.ticket += 1

    def finish(self, now: int) -> list[Flow]:
        """Take the flows off the link whose last byte has passed at `now`; return them."""
        self._advance(now)
        flows, ended = self._flows, []
        while flows and (flows[0][0] <= self._virtual or not flows[0][2].is_open):
            flow = heappop(flows)[2]
            if flow.is_open:
                flow.is_open = False
                self._num_flows -= 1
                ended.append(flow)
        self.ticket += 1
        return ended

    def next_end_at(self) -> int | None:
        """Return when the next flow leaves if none comes before; None if there is no flow."""
        flows = self._flows
        while flows and not flows[0][2].is_open:
            heappop(flows)
        if not flows:
            return None
        units = (flows[0][0] - self._virtual) * self._num_flows
        return self._last_at + max(0, -(-units // self._units_per_ns))

    def curve(self, flow: Flow) -> LayerCurve:
        """Return how far `flow` was at each time from its entry to now.

        Call it before another flow enters after the link was idle.
        """
        first = bisect_right(self._history_at, flow.entered_at) - 1
        return LayerCurve(
            self._history_at[first:],
            [virtual - flow.start_v for virtual in self._history_v[first:]],
            flow.end_v - flow.start_v,
        )

    def _advance(self, now: int) -> None:
        if self._num_flows:
            units = (now - self._last_at) * self._units_per_ns
            self._virtual += units // self._num_flows
        self._last_at = now
        history = self._history_at
        if history and history[-1] == now:
            return
        history.append(now)
        self._history_v.append(self._virtual)
        if len(history) > _MAX_HISTORY and not len(history) % _MAX_HISTORY:
            self._forget()

    def _forget(self) -> None:
        """Drop the history that no flow reaches back to: a busy link would keep it for ever."""
        oldest_at = min(flow.entered_at for _, _, flow in self._flows if flow.is_open)
        first = bisect_right(self._history_at, oldest_at) - 1
        del self._history_at[:first]
        del self._history_v[:first]
