"""A compressed radix tree in the plainest way: objects, all leaves searched at every eviction.

It shares no code with `kvsim.engines`. A node is a run of blocks that no request has parted yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.types import BlockKey

    Path = Sequence[BlockKey]


@dataclass(eq=False)
class Node:
    """A run of blocks, below another."""

    blocks: list[BlockKey]
    used_at: float
    children: list[Node] = field(default_factory=list)

    def below(self) -> Iterator[tuple[Node, Node]]:
        """Yield every (parent, node) of the tree below."""
        for child in self.children:
            yield self, child
            yield from child.below()

    def num_blocks(self) -> int:
        """Count the blocks of this node and of all below."""
        return len(self.blocks) + sum(len(node.blocks) for _, node in self.below())


def radix_hits(paths: Sequence[Path], capacity: int, *, renews_tail: bool) -> list[int]:
    """Return the leading run of each request if whole leaf nodes are evicted, the oldest first.

    A request that ends, or parts from the others, inside a node splits it. `renews_tail`: the part
    that was not asked for counts as used too.
    """
    root = Node([], 0)
    runs: list[int] = []
    for now, path in enumerate(paths):
        own, left, run = [root], list(path), 0
        while left:
            node = next((each for each in own[-1].children if each.blocks[0] == left[0]), None)
            if node is None:
                break
            shared = 0
            for mine, theirs in zip(node.blocks, left, strict=False):
                if mine != theirs:
                    break
                shared += 1
            run += shared
            left = left[shared:]
            if shared < len(node.blocks):
                tail_used_at = now if renews_tail else node.used_at
                tail = Node(node.blocks[shared:], tail_used_at, node.children)
                node.blocks, node.children = node.blocks[:shared], [tail]
                own.append(node)
                break
            own.append(node)
        runs.append(run)
        for node in own:
            node.used_at = now + 0.5  # newer than the tail, which nobody holds
        while root.num_blocks() + len(left) > capacity:
            leaves = [
                (node.used_at, parent, node)
                for parent, node in root.below()
                if not node.children and node not in own
            ]
            if not leaves:
                break
            _, parent, victim = min(leaves, key=lambda each: each[0])
            parent.children.remove(victim)
        left = left[: capacity - root.num_blocks()]
        if left:
            own[-1].children.append(Node(left, now + 0.5))
    return runs


def list_hits(paths: Sequence[Path], capacity: int) -> list[int]:
    """Return the leading runs of a plain list of blocks, each touched in turn, root first."""
    order: list[BlockKey] = []
    runs: list[int] = []
    for path in paths:
        run = 0
        while run < len(path) and path[run] in order:
            run += 1
        runs.append(run)
        for block in path:
            if block in order:
                order.remove(block)
            order.append(block)
            del order[: max(0, len(order) - capacity)]
    return runs
