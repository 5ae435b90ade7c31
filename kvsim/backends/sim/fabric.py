"""The ways between instances: ranks send to ranks, over cards and a switch that they share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kvsim.backends.sim.layers import LayerCurve
from kvsim.backends.sim.network import Network
from kvsim.backends.sim.transfers import close
from kvsim.core.sharding import shard
from kvsim.cost import duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.backends.sim.ledger import Clock, Ledger
    from kvsim.backends.sim.network import Hop, Stream
    from kvsim.backends.sim.transfers import TransferOp
    from kvsim.config import LinkConfig
    from kvsim.core.ops import Outcome, Place
    from kvsim.core.sharding import KVLayout
    from kvsim.topology import NetworkConfig
    from kvsim.types import OpId


class Lane(NamedTuple):
    """The hops from one rank to another, and the share of a rank's block that goes over them."""

    path: tuple[Hop, ...]
    num_heads: int
    of_heads: int

    def num_bytes(self, rank_bytes: int) -> int:
        """Return what goes over the lane when the source's rank has `rank_bytes`."""
        return -(-rank_bytes * self.num_heads // self.of_heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricSetup:
    """What a fabric is made from.

    Parameters
    ----------
    network
        Cards and switch.
    layouts
        How KV lies over the ranks of each instance.
    host_links
        Of each instance; used where the network goes over them.
    """

    network: NetworkConfig
    layouts: Mapping[int, KVLayout]
    host_links: Mapping[int, LinkConfig]


class Fabric:
    """Every wire between ranks of different instances, laid when it is first used."""

    def __init__(
        self, setup: FabricSetup, clock: Clock, ledger: Ledger, *, records_layers: bool
    ) -> None:
        self._config = setup.network
        self._layouts = setup.layouts
        self._host_links = setup.host_links
        self._clock = clock
        self._ledger = ledger
        self._records_layers = records_layers
        self._hops: dict[str, Hop] = {}
        self._network = Network()
        self._on_way: dict[OpId, _OnWay] = {}

    @property
    def hops(self) -> Sequence[Hop]:
        """All wires that have been laid."""
        return self._network.hops

    def covers(self, source: Place, target: Place) -> bool:
        """Whether bytes from `source` to `target` go over wires of the fabric."""
        if source.instance != target.instance:
            return True
        tiers = {source.tier, target.tier}
        return self._config.shares_host_link and tiers == {0, 1}

    def traffic(self, source: Place, target: Place) -> FabricTraffic:
        """Lay the way from `source` to `target`."""
        if source.instance == target.instance:
            lanes = self._host_lanes(source, target)
            link = self._host_links[source.instance]
            entry_ns = link.latency_ns + link.overhead_ns
        else:
            lanes = self._lanes(source.instance, target.instance)
            entry_ns = self._config.latency_ns + self._config.overhead_ns
        return FabricTraffic(
            self,
            lanes,
            entry_ns,
            self._layouts[source.instance].num_layers,
            records_layers=self._records_layers,
        )

    # -- what a way asks for

    def now(self) -> int:
        """Return the time in nanoseconds."""
        return self._clock.now

    def plan(self, when: int, fire: Callable[[], None], op: TransferOp) -> None:
        """Plan a call for `op`."""
        self._clock.at(when, fire, op)

    def enter(self, op: TransferOp, lanes: Sequence[Lane], num_layers: int) -> None:
        """Let the bytes of `op` in, a stream a lane."""
        now = self._clock.now
        network = self._network
        streams = [
            network.enter(op.op_id, lane.path, lane.num_bytes(op.num_bytes), now) for lane in lanes
        ]
        self._on_way[op.op_id] = _OnWay(op, streams, num_layers)
        self._plan_next_end()

    def leave(self, op: TransferOp) -> None:
        """Take the bytes of `op` off."""
        for stream in self._on_way.pop(op.op_id).streams:
            self._network.leave(stream, self._clock.now)
        self._plan_next_end()

    def finish(self, op: TransferOp, outcome: Outcome, reason: str, num_layers: int) -> None:
        """Close an op that has come to rest."""
        close(op, outcome, reason, ledger=self._ledger, num_layers=num_layers)

    def _plan_next_end(self) -> None:
        when = self._network.next_end_at()
        if when is not None:
            self._clock.at(when, self._end_streams, self._network)

    def _end_streams(self) -> None:
        for stream in self._network.finish(self._clock.now):
            on_way = self._on_way[stream.op_id]
            on_way.num_open -= 1
            if not on_way.num_open:
                del self._on_way[stream.op_id]
                on_way.op.bytes_passed(on_way.curve)
        self._plan_next_end()

    # -- wires

    def _lanes(self, source: int, target: int) -> list[Lane]:
        ours, theirs = self._layouts[source], self._layouts[target]
        return [
            Lane(
                self._path(source, piece.source_rank, target, piece.target_rank),
                piece.num_heads,
                ours.heads_per_rank,
            )
            for piece in shard(ours, theirs)
        ]

    def _path(
        self, source: int, source_rank: int, target: int, target_rank: int
    ) -> tuple[Hop, ...]:
        config = self._config
        rate = config.bytes_per_second
        nic = source_rank // config.ranks_per_nic
        path = [self._hop(f"out of instance {source}, card {nic}", rate)]
        if config.switch_bytes_per_second is not None:
            path.append(self._hop("switch", config.switch_bytes_per_second))
        nic = target_rank // config.ranks_per_nic
        path.append(self._hop(f"into instance {target}, card {nic}", rate))
        if config.shares_host_link:
            path = [
                self._host_hop(source, source_rank, "down"),
                *path,
                self._host_hop(target, target_rank, "up"),
            ]
        return tuple(path)

    def _host_lanes(self, source: Place, target: Place) -> list[Lane]:
        way = "down" if source.tier < target.tier else "up"
        ranks = range(self._layouts[source.instance].num_ranks)
        return [Lane((self._host_hop(source.instance, rank, way),), 1, 1) for rank in ranks]

    def _host_hop(self, instance: int, rank: int, way: str) -> Hop:
        link = self._host_links[instance]
        name = f"host link of instance {instance}, rank {rank}"
        return self._hop(f"{name}, {way}" if link.full_duplex else name, link.bytes_per_second)

    def _hop(self, name: str, bytes_per_second: int) -> Hop:
        known = self._hops.get(name)
        if known is None:
            known = self._hops[name] = self._network.add_hop(name, bytes_per_second)
        return known


class FabricTraffic:
    """One way between two places over the fabric; a `kvsim.backends.sim.transfers.Traffic`."""

    __slots__ = ("_fabric", "_lanes", "_num_layers", "entry_ns", "records_layers")

    def __init__(
        self,
        fabric: Fabric,
        lanes: Sequence[Lane],
        entry_ns: int,
        num_layers: int,
        *,
        records_layers: bool,
    ) -> None:
        self._fabric = fabric
        self._lanes = lanes
        self._num_layers = num_layers
        self.entry_ns = entry_ns
        self.records_layers = records_layers

    def now(self) -> int:
        """Return the time in nanoseconds."""
        return self._fabric.now()

    def plan(self, when: int, fire: Callable[[], None], op: TransferOp) -> None:
        """Plan a call for `op`."""
        self._fabric.plan(when, fire, op)

    def last_layer_end_at(self, op: TransferOp) -> int:
        """Return when the last layer of `op`, sent off now, has passed if nobody else sends."""
        layer_bytes = -(-op.num_bytes // self._num_layers)
        crossing: Counter[Hop] = Counter()
        for lane in self._lanes:
            for hop in lane.path:
                crossing[hop] += lane.num_bytes(layer_bytes)
        needed_ns = max(duration_ns(n, hop.bytes_per_second) for hop, n in crossing.items())
        return self.now() + self.entry_ns + needed_ns

    def enter(self, op: TransferOp) -> None:
        """Put the bytes of an op on their way."""
        self._fabric.enter(op, self._lanes, self._num_layers)

    def leave(self, op: TransferOp) -> None:
        """Take the bytes of an op off before their end."""
        self._fabric.leave(op)

    def finish(self, op: TransferOp, outcome: Outcome, reason: str) -> None:
        """Close an op that has come to rest."""
        self._fabric.finish(op, outcome, reason, self._num_layers)


class _OnWay:
    """An op whose bytes are on their way, and its streams."""

    __slots__ = ("_num_layers", "num_open", "op", "streams")

    def __init__(self, op: TransferOp, streams: list[Stream], num_layers: int) -> None:
        self.op = op
        self.streams = streams
        self.num_open = len(streams)
        self._num_layers = num_layers

    def curve(self) -> LayerCurve:
        """Return the curve of the op: a layer is through when it is through on every lane."""
        num_layers = self._num_layers
        by_lane = [stream.curve().layer_times(num_layers) for stream in self.streams]
        ends = [max(times) for times in zip(*by_lane, strict=True)]
        entered_at = self.op.started_at + self.op.traffic.entry_ns
        return LayerCurve([entered_at, *ends], range(num_layers + 1), num_layers)
