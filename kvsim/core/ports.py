"""What others plug into the core: a backend, an eviction policy, an event sink.

Each sentence of these docstrings is the contract, and has a test in the conformance suites.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.core.ops import Answer, Command
    from kvsim.events import Event
    from kvsim.types import BlockKey, NodeId, Rng


class Backend(Protocol):
    """Executes ops and owns time.

    Every submitted Forward and Transfer gives exactly one Completion. After an outcome TIMED_OUT
    exactly one Settled follows. A Cancel has no answer of its own. An op whose predecessor (in
    `after`) did not end DONE ends FAILED; it does not hang. Forwards of an instance run in
    submission order. Progress never depends on new work arriving.

    An op ends DONE unless a fault, a Cancel, its deadline or a predecessor prevents it. No op ends
    TIMED_OUT before its `deadline_at`; one that is not at rest by then does. A Forward that ends
    DONE has done all its steps unless it was cancelled. A Cancel ends a Forward that has started
    at a step boundary, DONE with at least one step; one that has not started may end CANCELLED,
    with none. A Cancel of an op that is unknown, has ended or has timed out is ignored. What a
    Forward says of the batch (`joined`, `left`, `grown`) holds for the next ones whatever its
    outcome.

    The finish time of an answer lies between the last `now()` and the next: an op that ended
    unseen before the last is dated then. Times are ints, and `started_at <= finished_at`. Layers
    finish in order, between the start and the finish of their op. Backends side by side do not
    disturb each other.
    """

    def now(self) -> int:
        """Return the time in nanoseconds. Never decreases."""

    def submit(self, command: Command) -> None:
        """Take a command. Never blocks and never calls back.

        Raises
        ------
        MisuseError
            If the op id is in flight, an op in `after` was never submitted, or it is closed.
        """

    def wait(self, until: int | None) -> Sequence[Answer]:
        """Return the next answers, at least one, ordered by (finish time, op id).

        Returns an empty sequence once `now() >= until`, and at once when `until` is None and
        nothing is in flight.
        """

    def close(self) -> None:
        """Release threads, processes, memory and sockets. Idempotent.

        May come while ops are in flight.
        """


class EventSink(Protocol):
    """Receives one event per decision, in order. Must not call back into the core."""

    def emit(self, event: Event) -> None:
        """Take one event."""


class RemoveReason(StrEnum):
    """Why a block leaves a tier."""

    EVICTED = "evicted"
    """Chosen as a victim and dropped: gone from this tier and kept nowhere below it."""
    DEMOTED = "demoted"
    """Chosen as a victim and moved to the tier below."""
    PROMOTED = "promoted"
    """Moved to the tier above because a request wants it."""
    SWAPPED = "swapped"
    """Moved to the tier below because its request was preempted, not chosen."""
    DETACHED = "detached"
    """Out of reach: taken out of the tree (its computation failed, a flush, or an order to evict
    its prefix), or hanging below a block that was dropped. Not chosen."""
    RETIRED = "retired"
    """The tier is made smaller and its block id goes: not the policy's choice, and no verdict."""


class AccessInfo(NamedTuple):
    """What a policy may know about the access that caused a call.

    A named tuple, since one is made per admission and a frozen dataclass takes longer to make.

    `now` is the time of admission (ns). `next_use_at[i]` is the index of the request that will
    want block i of this request's prompt next; it is None unless the policy asked for the future.
    `retention` is what the request says of how long its blocks are worth keeping; None: nothing.
    """

    now: int
    request_index: int
    session_id: str | None
    num_tokens: int
    priority: int
    next_use_at: Sequence[int] | None
    retention: BlockRetention | None = None


class BlockRetention(NamedTuple):
    """The retention that a request asks for, by block; see `kvsim.types.RetentionRange`.

    `prompt[i]` is of the block at depth i, `output` of those beyond: a priority, and when it is
    over (ns on the clock of `AccessInfo.now`; `NEVER` if it is not).
    """

    prompt: tuple[tuple[int, int], ...]
    output: tuple[int, int]

    def of(self, depth: int) -> tuple[int, int]:
        """Return priority and end of the block at `depth`."""
        return self.prompt[depth] if depth < len(self.prompt) else self.output


class Peel(Protocol):
    """Takes victims off the tree: the prefix rule, handed to the policy as a function."""

    def __call__(
        self,
        leaf: NodeId,
        n: int,
        rank: Sequence[int],
        limit: int,
        out: list[NodeId],
        /,
    ) -> NodeId:
        """Take `leaf`, then its ancestors one by one while they are bare and rank no higher.

        At most `n` nodes in all, ancestors only while `rank[node] <= limit`; each is appended to
        `out`. Returns the next bare ancestor, which the policy must list itself, or -1.
        """


class EvictionPolicy(Protocol):
    """An order over the evictable blocks of one tier. The batch form: fast, for built-in policies.

    A policy sees neither the tree nor a clock. Nodes are small dense ints, used again after
    `on_remove`, so that lists indexed by node are allowed. One object serves one tier.
    """

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Blocks enter the tier: a piece of one request's path, root first, `nodes[0]` at `depth`.

        `info` is None for a batch copied down from the tier above, then in victim order (the one
        that left, or would leave, first comes first) and `depth` is 0.
        """

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        """One request matched these blocks of the tier, root first. Comes before its inserts."""

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        """Note that a request lets go of `path` (root first), at its end or preemption.

        `path` are those of its blocks that are in the tier.
        """

    def on_evictable(self, node: NodeId) -> None:
        """Note that `node` may be chosen from now on: it has no reference, is settled and bare."""

    def on_pinned(self, node: NodeId) -> None:
        """Note that `node` may not be chosen until the next `on_evictable`. Idempotent."""

    def on_remove(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        """Blocks left the tier. Victims the policy chose itself are reported here too."""

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[NodeId]:
        """Return at most `n` nodes to take from the tier, each evictable when its turn comes.

        Every victim is taken with `peel` and is always obeyed. (One that cannot leave after all,
        since something of its subtree is busy in the tier below, is removed and then inserted
        again, as if it had come from above.) Fewer than `n` only if no more are evictable: none
        returned while an evictable node exists is a fault.
        """


class BlockPolicy(Protocol):
    """The per-block form, for users: simpler, and slower. Wrapped by `PerBlockAdapter`.

    Keys are opaque and keep their meaning after removal, so ghosts may be kept by key.
    Within one request calls come leaf first, hits before inserts.
    """

    def on_insert(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        """Note that a block enters the tier at `depth` (0 is a root)."""

    def on_hit(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        """Note that a request matched the block."""

    def on_evictable(self, key: BlockKey) -> None:
        """Note that the block may be chosen from now on."""

    def on_pinned(self, key: BlockKey) -> None:
        """Note that the block may not be chosen until the next `on_evictable`. Idempotent."""

    def on_remove(self, key: BlockKey, reason: RemoveReason) -> None:
        """Note that the block left the tier, chosen or not."""

    def choose_victim(self, now: int) -> BlockKey | None:
        """Return one evictable block; None only if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContext:
    """What a policy is built from. One context per tier; `shared` is common to all tiers.

    `num_nodes` bounds every node id. `key_of[node]` is the key of a live node. `recompute_ns`
    gives the cost of computing the block at a depth again. `is_inclusive`: a block may be in
    several tiers at a time.

    Tiers can be resized. A policy that keeps lists by node, or goes by the capacity, appends a
    function to `on_resize`: it is called with the new capacity in blocks and the new bound of the
    node ids, which never falls, before anything else happens. A tier whose policy has not done so
    keeps its number of nodes: it can shrink, and grow again up to that.
    """

    tier: int
    capacity_blocks: int
    num_nodes: int
    key_of: Sequence[BlockKey]
    rng: Rng
    recompute_ns: Callable[[int], int]
    shared: dict[str, object] = field(default_factory=dict)
    is_inclusive: bool = False
    on_resize: list[Callable[[int, int], None]] = field(default_factory=list)
