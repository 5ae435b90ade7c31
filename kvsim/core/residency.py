"""The copy machine: the states of one block's copy in one tier, and the only steps between them.

A node of the prefix tree has one copy per tier. Nothing but `Copies` changes a copy's state, and it
knows no step that `TRANSITIONS` does not have. `docs/architecture.md` shows the same table.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final

from kvsim.errors import IllegalTransitionError, PolicyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.types import BlockId, NodeId


class CopyState(IntEnum):
    """What a tier has of a block."""

    ABSENT = 0
    INCOMING = 1
    """A block id is taken; exactly one open op will write it."""
    READY = 2
    LEAVING = 3
    """Readable, and the source of an open op that was issued to free it. Does not protect its
    parent from leaving too."""


class CopyEvent(StrEnum):
    """What can happen to a copy."""

    RESERVE = "reserve"
    WRITTEN = "written"
    LOST = "lost"
    TIMED_OUT = "timed out"
    LEAVE = "leave"
    RESCUE = "rescue"
    LEFT = "left"
    DROP = "drop"


TRANSITIONS: Final[Mapping[CopyEvent, tuple[CopyState, CopyState]]] = {
    CopyEvent.RESERVE: (CopyState.ABSENT, CopyState.INCOMING),
    CopyEvent.WRITTEN: (CopyState.INCOMING, CopyState.READY),
    CopyEvent.LOST: (CopyState.INCOMING, CopyState.ABSENT),
    # The block id is not free: the pool quarantines it until the op has settled.
    CopyEvent.TIMED_OUT: (CopyState.INCOMING, CopyState.ABSENT),
    CopyEvent.LEAVE: (CopyState.READY, CopyState.LEAVING),
    # Hit again on its way out, or the copy below failed.
    CopyEvent.RESCUE: (CopyState.LEAVING, CopyState.READY),
    CopyEvent.LEFT: (CopyState.LEAVING, CopyState.ABSENT),
    CopyEvent.DROP: (CopyState.READY, CopyState.ABSENT),
}

# Plain ints for the hot loops: comparing an int with an enum member calls Python.
ABSENT: Final = int(CopyState.ABSENT)
INCOMING: Final = int(CopyState.INCOMING)
READY: Final = int(CopyState.READY)
LEAVING: Final = int(CopyState.LEAVING)

_STEPS: Final = {event: (int(old), int(new)) for event, (old, new) in TRANSITIONS.items()}


class Copies:
    """The copies of all nodes in one tier, as parallel lists indexed by node.

    Attributes
    ----------
    state
        The `CopyState` of each node's copy. Read freely; written here only.
    block
        The block id of each copy that is not ABSENT.
    holds
        How many things keep each copy where it is: references that end at the node, children
        with a copy in this tier that is not leaving, and open ops that read the copy. A READY
        copy of an attached node is evictable exactly when this is 0. Kept by the manager,
        recomputed by `check()`.
    num_in
        How many copies are in each state.
    """

    __slots__ = ("block", "holds", "num_in", "state")

    def __init__(self, num_nodes: int) -> None:
        # A list, not a bytearray: CPython has specialised instructions for lists only.
        self.state = [ABSENT] * num_nodes
        self.block: list[BlockId] = [0] * num_nodes
        self.holds = [0] * num_nodes
        # The root (node 0) is there on every tier, owns no block, never leaves, is never counted.
        self.state[0] = READY
        self.holds[0] = 1
        self.num_in = [num_nodes - 1, 0, 0, 0]

    def add_nodes(self, n: int) -> None:
        """Make room for `n` more nodes; the lists stay the same objects."""
        self.state += [ABSENT] * n
        self.block += [0] * n
        self.holds += [0] * n
        self.num_in[ABSENT] += n

    def reserve(
        self, nodes: Sequence[NodeId], block_ids: Sequence[BlockId], parent: Sequence[NodeId]
    ) -> None:
        """Give each node an INCOMING copy in the block of the same position.

        Each counts as a child that holds its parent. Where that parent was evictable, the caller
        has told the policy before.
        """
        state, block, holds = self.state, self.block, self.holds
        for node, block_id in zip(nodes, block_ids, strict=True):
            if state[node]:
                raise self._illegal(node, CopyEvent.RESERVE)
            state[node] = INCOMING
            block[node] = block_id
            holds[parent[node]] += 1
        self.num_in[ABSENT] -= len(nodes)
        self.num_in[INCOMING] += len(nodes)

    def reserve_chain(
        self,
        nodes: Sequence[NodeId],
        block_ids: Sequence[BlockId],
        *,
        is_written: bool = False,
    ) -> None:
        """As `reserve`, for new nodes that form a chain with a reference at its end.

        `is_written`: WRITTEN follows at once. One loop instead of three: this is the hottest step
        of a replay.
        """
        state, block, holds = self.state, self.block, self.holds
        new = READY if is_written else INCOMING
        for node, block_id in zip(nodes, block_ids, strict=True):
            if state[node]:
                raise self._illegal(node, CopyEvent.RESERVE)
            state[node] = new
            block[node] = block_id
            holds[node] = 1
        self.num_in[ABSENT] -= len(nodes)
        self.num_in[new] += len(nodes)

    def move(self, nodes: Sequence[NodeId], event: CopyEvent) -> None:
        """Take the step `event` with the copy of every node.

        Raises
        ------
        IllegalTransitionError
            If a copy is not in the state that `TRANSITIONS` asks for.
        """
        old, new = _STEPS[event]
        state = self.state
        for node in nodes:
            if state[node] != old:
                raise self._illegal(node, event)
            state[node] = new
        self.num_in[old] -= len(nodes)
        self.num_in[new] += len(nodes)

    def move_down(self, below: Copies, nodes: Sequence[NodeId]) -> None:
        """Finish a write-back: LEFT here and WRITTEN in the tier below, in one pass."""
        state, state_below = self.state, below.state
        for node in nodes:
            if state[node] != LEAVING:
                raise self._illegal(node, CopyEvent.LEFT)
            if state_below[node] != INCOMING:
                raise below._illegal(node, CopyEvent.WRITTEN)
            state[node] = ABSENT
            state_below[node] = READY
        n = len(nodes)
        self.num_in[LEAVING] -= n
        self.num_in[ABSENT] += n
        below.num_in[INCOMING] -= n
        below.num_in[READY] += n

    def peel(
        self,
        parent: Sequence[NodeId],
        event: CopyEvent,
        leaf: NodeId,
        n: int,
        rank: Sequence[int],
        limit: int,
        out: list[NodeId],
    ) -> NodeId:
        """Take the READY copy of `leaf`, then those of its ancestors, by `event`.

        The prefix rule, in one place: see `kvsim.core.ports.Peel`. A child that is taken no
        longer protects its parent. `event` is DROP or LEAVE.

        Raises
        ------
        PolicyError
            If `leaf` is not evictable.
        """
        old, new = _STEPS[event]
        state, holds = self.state, self.holds
        if state[leaf] != old or holds[leaf]:
            raise PolicyError(
                f"a policy took node {leaf} as a victim, which is not evictable: its copy is"
                f" {CopyState(state[leaf]).name}, and {holds[leaf]} references, children or ops"
                " hold it"
            )
        node = leaf
        start = len(out)
        last = start + n
        while True:
            out.append(node)
            state[node] = new
            node = parent[node]
            holds[node] = held = holds[node] - 1
            if held or state[node] != old or rank[node] > limit or len(out) >= last:
                break
        bare = -1 if held or state[node] != old else node
        num_taken = len(out) - start
        self.num_in[old] -= num_taken
        self.num_in[new] += num_taken
        return bare

    def blocks_of(self, nodes: Sequence[NodeId]) -> list[BlockId]:
        """Return the block ids of the nodes' copies, in the order of `nodes`."""
        block = self.block
        return [block[node] for node in nodes]

    def _illegal(self, node: NodeId, event: CopyEvent) -> IllegalTransitionError:
        seen, wanted = CopyState(self.state[node]).name, TRANSITIONS[event][0].name
        return IllegalTransitionError(f"copy of node {node} is {seen}; {event.name} needs {wanted}")
