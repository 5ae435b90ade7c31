"""What a backend is made from, and what the table of backends says about each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.config import FaultConfig, LinkConfig, Role
    from kvsim.core.ports import Backend
    from kvsim.core.sharding import KVLayout
    from kvsim.cost import CostModel, ModelShape
    from kvsim.topology import NetworkConfig
    from kvsim.types import OpId, Request


class Clock(StrEnum):
    """Whose time a backend's is."""

    VIRTUAL = "virtual"
    """It jumps from one event to the next: the same on every machine."""
    WALL = "wall"
    """The machine's own."""


class ForwardTime(StrEnum):
    """How long a step of a backend on the wall clock takes, beside what it does to its blocks."""

    COST = "cost"
    """What the cost model says, divided by the time scale."""
    NONE = "none"
    """Nothing: the run is as fast as the engine and the copies allow."""
    ATTENTION = "attention"
    """What it takes to attend, in every layer, to all that the requests' block tables hold."""


class Workers(StrEnum):
    """What the ranks of real tensors are."""

    THREADS = "threads"
    """Of this process: there at once, and they share one interpreter with the engine."""
    PROCESSES = "processes"
    """Each with its memory: they take seconds to start, and run beside the engine."""


LONGEST_SILENCE_NS: Final = 30 * 10**9
"""Default of `worker_timeout_ns`: far above the longest piece of work of a rank, a layer's copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSetup:
    """What a run is about; a backend takes what it needs of it.

    Parameters
    ----------
    requests, block_size
        Those that the ops will name, by request id; and the tokens of a block.
    tier_blocks
        Capacity of each tier of the instance, nearest first; a second tier may have 0 blocks.
    cost, host_link
        How long steps take, and the link between the first two tiers, on each rank.
    disk_link
        The link between the third tier and the others; None: there is none.
    num_ranks
        Ranks of the instance.
    faults, seed
        What goes wrong, and the seed that decides where.
    shape, device
        Of real tensors: a name of `kvsim.backends.paddle.shape.SHAPES`, or "model"; and "cpu" or
        "gpu:N".
    model, kv_dtype
        The model that the shape "model" is of, and the name of the type of a KV value.
    layout, extra_layers, expand_ratio
        The order of the memory of real tensors, "block-major" or "layer-major"; layers of a draft
        model, and its blocks for each of the others.
    forward, time_scale
        On the wall clock: what a step takes, and by what the arrivals were, and the steps are to
        be, divided.
    record_layers
        Whether answers that are DONE carry `layers_finished_at`.
    workers
        What the ranks of real tensors are.
    worker_timeout_ns
        How long a worker process may leave a question unanswered before it counts as lost.
    """

    requests: Sequence[Request]
    block_size: int
    tier_blocks: tuple[int, ...]
    cost: CostModel
    host_link: LinkConfig
    num_ranks: int
    faults: FaultConfig
    seed: int
    shape: str = "tiny"
    device: str = "cpu"
    model: ModelShape | None = None
    kv_dtype: str = "bf16"
    layout: str = "block-major"
    extra_layers: int = 0
    expand_ratio: float = 1.0
    forward: ForwardTime = ForwardTime.COST
    time_scale: float = 1.0
    record_layers: bool = False
    workers: Workers = Workers.THREADS
    worker_timeout_ns: int = LONGEST_SILENCE_NS
    disk_link: LinkConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSetup:
    """One of several instances.

    Parameters
    ----------
    role
        What it does for a request.
    tier_blocks
        Capacity of each of its tiers, nearest first.
    cost, host_link
        How long its steps take, and the link between its tiers, on each rank.
    layout
        How KV lies over its ranks.
    """

    role: Role
    tier_blocks: tuple[int, ...]
    cost: CostModel
    host_link: LinkConfig
    layout: KVLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSetup:
    """What a run on several instances is about. Their numbers are their positions.

    Parameters
    ----------
    requests, block_size
        Those that the ops will name, by request id; and the tokens of a block.
    instances
        All of them.
    network
        What lies between them.
    faults, seed, shape, device, forward, time_scale, record_layers
        As in `BackendSetup`.
    """

    requests: Sequence[Request]
    block_size: int
    instances: tuple[InstanceSetup, ...]
    network: NetworkConfig
    faults: FaultConfig
    seed: int
    shape: str = "tiny"
    device: str = "cpu"
    forward: ForwardTime = ForwardTime.COST
    time_scale: float = 1.0
    record_layers: bool = False


class WireFigures(NamedTuple):
    """A wire between instances: what passed it, and what it passes at most."""

    name: str
    num_bytes: int
    bytes_per_second: int


class TensorFigures(TypedDict):
    """What became of the bytes.

    `wrong_bytes` differ from what was computed into their block. `blocks_checked` counts every
    block that a slice of a prompt, or a request that begins to decode, has read, on each rank.
    `blocks_swapped` counts the blocks of transfers that are done, all ranks together as one.
    """

    wrong_bytes: int
    blocks_checked: int
    blocks_swapped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBackend:
    """A backend that is ready, and what can be asked about it after the run.

    `rank_block_bytes` are the bytes of a block on each rank. `tensors` is None where there are
    none. `notes` are for the reader of the result. `wires` are those between instances, where they
    are known. `copy_ns` has, for each Transfer that is done, the time for which the slowest rank
    copied, without waits; nothing where no bytes are copied.
    """

    backend: Backend
    rank_block_bytes: int
    tensors: Callable[[], TensorFigures] | None = None
    notes: Callable[[], Sequence[str]] = tuple
    wires: Callable[[], Sequence[WireFigures]] = tuple
    copy_ns: Callable[[], Mapping[OpId, int]] = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendEntry:
    """A line of the table of backends.

    `opener` is "module:function", or the function: it takes a `BackendSetup` and returns an
    `OpenBackend`. It is looked up when it is needed, so that no backend is imported in vain.
    `cluster_opener`, likewise, takes a `ClusterSetup`; None: it knows one instance only.
    """

    clock: Clock
    opener: str | Callable[[BackendSetup], OpenBackend]
    cluster_opener: str | Callable[[ClusterSetup], OpenBackend] | None = None
