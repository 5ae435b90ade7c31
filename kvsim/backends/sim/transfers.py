"""Transfers: which link an op uses, and its way over it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kvsim.backends.sim.layers import straight
from kvsim.backends.sim.ledger import NOT_STARTED
from kvsim.backends.sim.links import Link
from kvsim.config import LinkConfig
from kvsim.core.ops import Gate, Outcome
from kvsim.cost import duration_ns
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.faults import Fault
    from kvsim.backends.sim.layers import LayerCurve
    from kvsim.backends.sim.ledger import Clock, Ledger, SimOp
    from kvsim.backends.sim.links import Flow
    from kvsim.core.ops import Place, Transfer
    from kvsim.cost import CostModel
    from kvsim.types import OpId, TierIndex

Links: TypeAlias = "LinkConfig | Mapping[tuple[TierIndex, TierIndex], LinkConfig]"
"""One configuration for all pairs of tiers, or one for each (source tier, target tier) in use."""


class Traffic(Protocol):
    """One way between two places, and the ops on it.

    `entry_ns` passes between the start of an op and its first byte.
    """

    entry_ns: int
    records_layers: bool

    def now(self) -> int:
        """Return the time in nanoseconds."""

    def plan(self, when: int, fire: Callable[[], None], op: TransferOp) -> None:
        """Plan a call for `op`."""

    def last_layer_end_at(self, op: TransferOp) -> int:
        """Return when the last layer of `op`, sent off now, has passed if nobody else sends."""

    def enter(self, op: TransferOp) -> None:
        """Put the bytes of an op on their way; `op.bytes_passed` comes when they are through."""

    def leave(self, op: TransferOp) -> None:
        """Take the bytes of an op off before their end."""

    def finish(self, op: TransferOp, outcome: Outcome, reason: str) -> None:
        """Close an op that has come to rest."""


class FabricLike(Protocol):
    """Wires that several pairs of places share."""

    def covers(self, source: Place, target: Place) -> bool:
        """Whether bytes from `source` to `target` go over these wires."""

    def traffic(self, source: Place, target: Place) -> Traffic:
        """Lay the way from `source` to `target`."""


class TransferOp:
    """A Transfer under simulation.

    With gate LAYER behind Forwards of one step (a send layer by layer) the bytes enter the link
    when the first layer is computed, at their full number, and the op ends no earlier than the last
    layer would take after the Forward: exact on a link of its own; where others share the link,
    bytes may take up bandwidth before they are computed, but the op never ends before they could
    have passed. Behind other ops gate LAYER is taken as gate OP: later than need be, never too
    early.
    """

    __slots__ = (
        "_curve",
        "_floor_at",
        "_is_on_way",
        "_num_unknown",
        "_open_at",
        "_passed_at",
        "command",
        "fault",
        "is_timed_out",
        "num_bytes",
        "num_open",
        "op_id",
        "started_at",
        "ticket",
        "traffic",
        "waiters",
    )

    def __init__(
        self, command: Transfer, num_bytes: int, traffic: Traffic, fault: Fault | None
    ) -> None:
        self.command = command
        self.op_id = command.op_id
        self.num_bytes = num_bytes
        self.traffic = traffic
        self.fault = fault
        self.ticket = 0
        self.is_timed_out = False
        self.started_at = NOT_STARTED
        self.num_open = 0
        self.waiters: list[SimOp] | None = None
        self._num_unknown = 0  # ops in `after` of which the first layer's end is not known
        self._open_at = 0
        self._floor_at = 0
        self._is_on_way = False
        self._passed_at: int | None = None
        self._curve: LayerCurve | None = None

    def submit(self) -> None:
        """Start if nothing stands in the way."""
        if not self._num_unknown:
            self._start()

    def wait_for(self, predecessor: SimOp | None) -> None:
        """Count one more op in `after` that has not ended."""
        self.num_open += 1
        first_at = None if predecessor is None else self._first_layer_at(predecessor)
        if first_at is None:
            self._num_unknown += 1
        else:
            self._open_at = max(self._open_at, first_at)

    def predecessor_started(self, predecessor: SimOp) -> None:
        """Start behind a Forward whose layers are under way, if it was the last one missing."""
        first_at = self._first_layer_at(predecessor)
        if first_at is not None:
            self._open_at = max(self._open_at, first_at)
            self._predecessor_known()

    def predecessor_done(self, predecessor: SimOp) -> None:
        """Start, or end, if it was the last one missing."""
        self.num_open -= 1
        if not self.num_open and self.command.gate is Gate.LAYER:
            self._floor_at = self.traffic.last_layer_end_at(self)
        if self._first_layer_at(predecessor) is None:
            self._predecessor_known()
        if self._passed_at is not None:
            self._conclude()

    def first_layer_at(self) -> int | None:
        """Return None: what others do on the link decides it."""
        return None

    def curve(self) -> LayerCurve:
        """Return when the layers passed; all later if the op ended after its last byte."""
        now = self.traffic.now()
        if self._curve is None or self._passed_at is None:
            return straight(now, now)
        self._curve.shift_ns = now - self._passed_at
        return self._curve

    def cancel(self) -> None:
        """End now. A rank that hangs does not hear it, once the op has started."""
        is_hung = self.fault is not None and self.fault.settle_ns is not None
        if not (is_hung and NOT_STARTED < self.started_at <= self.traffic.now()):
            self.abort(Outcome.CANCELLED, "")

    def abort(self, outcome: Outcome, reason: str) -> None:
        """Come to rest now, off the link."""
        if self._is_on_way:
            self.traffic.leave(self)
            self._is_on_way = False
        self.traffic.finish(self, outcome, reason)

    def end(self) -> None:
        """Come to rest as planned, now: DONE, or FAILED if there is a fault that says so."""
        reason = "" if self.fault is None else self.fault.reason
        self.abort(Outcome.FAILED if reason else Outcome.DONE, reason)

    def enter(self) -> None:
        """Put the bytes on the link, now."""
        self._is_on_way = True
        self.traffic.enter(self)

    def bytes_passed(self, curve: Callable[[], LayerCurve]) -> None:
        """Take note that the last byte has passed, now; `curve` says when each byte did."""
        if self.waiters is not None or self.traffic.records_layers:
            self._curve = curve()
        self._is_on_way = False
        self._passed_at = self.traffic.now()
        self._conclude()

    def _first_layer_at(self, predecessor: SimOp) -> int | None:
        return predecessor.first_layer_at() if self.command.gate is Gate.LAYER else None

    def _predecessor_known(self) -> None:
        self._num_unknown -= 1
        if not self._num_unknown:
            self._start()

    def _start(self) -> None:
        self.started_at = max(self.traffic.now(), self._open_at)
        self.traffic.plan(self.started_at + self.traffic.entry_ns, self.enter, self)

    def _conclude(self) -> None:
        if self.num_open:
            return
        end_at = max(self.traffic.now(), self._floor_at)
        if self.fault is not None:
            if self.fault.settle_ns is not None:
                return
            end_at += self.fault.delay_ns
        self.traffic.plan(end_at, self.end, self)


def close(
    op: TransferOp, outcome: Outcome, reason: str, *, ledger: Ledger, num_layers: int
) -> None:
    """Answer for an op that has come to rest, with the times of its layers if they are wanted."""
    layers: tuple[int, ...] = ()
    if op.traffic.records_layers and outcome is Outcome.DONE and not op.is_timed_out:
        layers = op.curve().layer_times(num_layers)
    ledger.finish(op, outcome, reason, layers_finished_at=layers)


class LinkTraffic:
    """The ops on one link; a `Traffic`.

    All ranks move the same bytes at the same time, so the bytes of one rank are simulated.
    """

    __slots__ = ("_clock", "_flows", "_ledger", "_num_layers", "entry_ns", "link", "records_layers")

    def __init__(
        self, link: Link, num_layers: int, clock: Clock, ledger: Ledger, *, records_layers: bool
    ) -> None:
        self.link = link
        self.entry_ns = link.entry_ns
        self.records_layers = records_layers
        self._num_layers = num_layers
        self._clock = clock
        self._ledger = ledger
        self._flows: dict[OpId, tuple[TransferOp, Flow]] = {}

    def now(self) -> int:
        """Return the time in nanoseconds."""
        return self._clock.now

    def plan(self, when: int, fire: Callable[[], None], op: TransferOp) -> None:
        """Plan a call for `op`."""
        self._clock.at(when, fire, op)

    def last_layer_end_at(self, op: TransferOp) -> int:
        """Return when the last layer of `op`, sent off now, has passed if nobody else sends."""
        link = self.link
        num_bytes = -(-op.num_bytes // self._num_layers)
        return self._clock.now + link.entry_ns + duration_ns(num_bytes, link.bytes_per_second)

    def enter(self, op: TransferOp) -> None:
        """Put the bytes of an op on the link."""
        flow = self.link.enter(op.op_id, op.num_bytes, self._clock.now)
        self._flows[op.op_id] = op, flow
        self._plan_next_end()

    def leave(self, op: TransferOp) -> None:
        """Take the bytes of an op off the link before their end."""
        _, flow = self._flows.pop(op.op_id)
        self.link.leave(flow, self._clock.now)
        self._plan_next_end()

    def finish(self, op: TransferOp, outcome: Outcome, reason: str) -> None:
        """Close an op that has come to rest."""
        close(op, outcome, reason, ledger=self._ledger, num_layers=self._num_layers)

    def _plan_next_end(self) -> None:
        when = self.link.next_end_at()
        if when is not None:
            self._clock.at(when, self._end_flows, self.link)

    def _end_flows(self) -> None:
        for flow in self.link.finish(self._clock.now):
            op, _ = self._flows.pop(flow.op_id)
            op.bytes_passed(partial(self.link.curve, flow))
        self._plan_next_end()


class LinkTable:
    """Finds the link between two places, and lays it when it is first used.

    Each ordered pair of places has a link of its own; a half-duplex link serves both directions.
    Pairs that share wires are the fabric's, where there is one.

    Raises
    ------
    ConfigError
        If a half-duplex link is configured differently in its two directions.
    """

    __slots__ = (
        "_clock",
        "_config",
        "_fabric",
        "_ledger",
        "_num_layers",
        "_records_layers",
        "_traffic",
    )

    def __init__(
        self,
        links: Links,
        cost: CostModel,
        clock: Clock,
        ledger: Ledger,
        *,
        records_layers: bool,
        fabric: FabricLike | None = None,
    ) -> None:
        self._config = links
        self._fabric = fabric
        self._num_layers = cost.num_layers
        self._clock = clock
        self._ledger = ledger
        self._records_layers = records_layers
        self._traffic: dict[tuple[int, int, int, int], Traffic] = {}
        if isinstance(links, Mapping):
            for (source, target), config in links.items():
                other = links.get((target, source), config)
                if other != config and not (other.full_duplex and config.full_duplex):
                    raise ConfigError(
                        f"the link between tiers {source} and {target} is half duplex, so both"
                        f" directions must be configured alike, not {config} and {other}"
                    )

    def traffic(self, source: Place, target: Place) -> Traffic:
        """Return the link from `source` to `target`.

        Raises
        ------
        ConfigError
            If no link between their tiers is configured.
        """
        way = (source.instance, source.tier, target.instance, target.tier)
        known = self._traffic.get(way)
        if known is not None:
            return known
        if self._fabric is not None and self._fabric.covers(source, target):
            lane = self._traffic[way] = self._fabric.traffic(source, target)
            return lane
        config = self._link_config(source.tier, target.tier)
        traffic = LinkTraffic(
            Link(config),
            self._num_layers,
            self._clock,
            self._ledger,
            records_layers=self._records_layers,
        )
        self._traffic[way] = traffic
        if not config.full_duplex:
            self._traffic[way[2:] + way[:2]] = traffic
        return traffic

    def _link_config(self, source: TierIndex, target: TierIndex) -> LinkConfig:
        if isinstance(self._config, LinkConfig):
            return self._config
        config = self._config.get((source, target)) or self._config.get((target, source))
        if config is None:
            raise ConfigError(
                f"no link from tier {source} to tier {target};"
                f" links are configured for {sorted(self._config)}"
            )
        return config
