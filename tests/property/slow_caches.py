"""Caches in the plainest way, for the lab to be compared with: dicts, children counted anew.

They know nothing of stacks, pieces or heaps, and share no code with `kvsim.hitrate`. Requests come
one after another; a path that is too long keeps its first blocks.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations, product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.types import BlockKey

    Path = Sequence[BlockKey]


class Tree:
    """The parents of all blocks."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.parent: dict[BlockKey, BlockKey | None] = {}
        for path in paths:
            self.parent.update(zip(path, [None, *path], strict=False))

    def leaves(self, blocks: Iterable[BlockKey]) -> list[BlockKey]:
        """Return the blocks that none of the others hangs below."""
        blocks = list(blocks)
        parents = {self.parent[block] for block in blocks}
        return [block for block in blocks if block not in parents]

    def oldest_leaf(
        self, used_at: dict[BlockKey, int], protected: Iterable[BlockKey]
    ) -> BlockKey | None:
        """Return the leaf with the least stamp, or None if there is none to take."""
        free = [block for block in self.leaves(used_at) if block not in set(protected)]
        return min(free, key=used_at.__getitem__, default=None)


def leading_run(path: Path, blocks: Iterable[BlockKey]) -> int:
    """Return how many blocks from the first are there, without a gap."""
    known = set(blocks)
    return next((i for i, block in enumerate(path) if block not in known), len(path))


def lru_hits(paths: Sequence[Path], capacity: int) -> list[int]:
    """Return the leading run of each request in a cache that evicts its oldest leaf."""
    tree, used_at, runs = Tree(paths), dict[object, int](), []
    for now, path in enumerate(paths):
        runs.append(leading_run(path, used_at))
        put(tree, used_at, path[:capacity], capacity, now)
    return runs


def put(tree: Tree, used_at: dict[BlockKey, int], path: Path, capacity: int, now: int) -> None:
    """Touch a path as a whole, evicting leaves that are not its own."""
    for block in path:
        while block not in used_at and len(used_at) >= capacity:
            victim = tree.oldest_leaf(used_at, path)
            assert victim is not None
            del used_at[victim]
        used_at[block] = now


def root_first_lru_hits(paths: Sequence[Path], capacity: int) -> list[int]:
    """Return the leading runs of a plain LRU list that is touched block by block, root first.

    The bug that the real traces hardly show: under it a parent is older than its child.
    """
    order: dict[BlockKey, None] = {}
    runs: list[int] = []
    for path in paths:
        runs.append(leading_run(path, order))
        for block in path:
            order.pop(block, None)
            order[block] = None
            if len(order) > capacity:
                del order[next(iter(order))]
    return runs


def exclusive_hits(
    paths: Sequence[Path],
    sizes: Sequence[int],
    *,
    demotes_first: bool = False,
    drops_tail: bool = False,
) -> list[tuple[int, ...]]:
    """Return the hits of each request on each of several exclusive tiers.

    A request's blocks are taken out of the lower tiers; then tier 0 makes room by demoting its
    oldest leaves, one by one, each of which is the newest block of the tier below, which makes
    room in the same way. What of a path is longer than a tier goes on to the next, first blocks
    first. The two wrong ways: promoted blocks keep their place below until room has been made
    (`demotes_first`); what is longer than tier 0 is dropped (`drops_tail`).
    """
    tree, clock = Tree(paths), 0
    tiers: list[dict[BlockKey, int]] = [{} for _ in sizes]
    found: list[tuple[int, ...]] = []

    def insert(index: int, block: BlockKey, own: Path) -> None:
        nonlocal clock
        if index == len(sizes) or not sizes[index]:
            if index < len(sizes):
                insert(index + 1, block, own)
            return
        tier = tiers[index]
        while len(tier) >= sizes[index]:
            victim = tree.oldest_leaf(tier, own)
            if victim is None:
                insert(index + 1, block, own)
                return
            del tier[victim]
            insert(index + 1, victim, own)
        clock += 1
        tier[block] = clock

    for path in paths:
        run = leading_run(path, [block for tier in tiers for block in tier])
        found.append(tuple(sum(block in tier for block in path[:run]) for tier in tiers))
        held = [block for block in path if block in tiers[0]]
        moved = [block for block in path if block not in tiers[0]]
        if not demotes_first:
            for tier in tiers[1:]:
                for block in path:
                    tier.pop(block, None)
        end = sizes[0] if drops_tail else len(path)
        for block in path[:end]:
            if block in moved:
                insert(0, block, path)
        if demotes_first:
            for tier in tiers[1:]:
                for block in path[: sizes[0]]:
                    tier.pop(block, None)
        clock += 1
        tiers[0].update({block: clock for block in path if block in tiers[0] or block in held})
    return found


def inclusive_hits(
    paths: Sequence[Path],
    gpu_blocks: int,
    cpu_blocks: int,
    *,
    refreshes: bool = True,
    writes_from_use: int = 1,
) -> list[tuple[int, int]]:
    """Return the hits of each request on the GPU, and on a CPU tier that gets every block too.

    The two wrong ways: a GPU hit leaves the CPU copy as old as it was (`refreshes=False`); a block
    is written below only from its second use on (`writes_from_use=2`).
    """
    tree, uses = Tree(paths), dict[object, int]()
    gpu: dict[BlockKey, int] = {}
    cpu: dict[BlockKey, int] = {}
    found: list[tuple[int, int]] = []
    for now, path in enumerate(paths):
        near = leading_run(path, gpu)
        run = leading_run(path, {*gpu, *cpu})
        found.append((near, run - near))
        put(tree, gpu, path[:gpu_blocks], gpu_blocks, now)
        for i, block in enumerate(path[:cpu_blocks]):
            uses[block] = uses.get(block, 0) + 1
            if uses[block] < writes_from_use or (i < near and not refreshes and block in cpu):
                continue
            if block not in cpu and len(cpu) >= cpu_blocks:
                victim = tree.oldest_leaf(cpu, path)
                if victim is None:
                    continue
                del cpu[victim]
            cpu[block] = now
    return found


def most_hits(paths: Sequence[Path], capacity: int, *, may_bypass: bool) -> int:
    """Return the most hits that any choice of what to keep can have, by trying all of them."""

    @cache
    def best(index: int, cached: frozenset[BlockKey]) -> int:
        if index == len(paths):
            return 0
        path = paths[index]
        must = frozenset() if may_bypass else frozenset(path[:capacity])
        others = (cached | set(path)) - must
        room = min(capacity - len(must), len(others))
        # Keeping less never helps, so only full caches are tried.
        return leading_run(path, cached) + max(
            best(index + 1, must.union(kept))
            for kept in combinations(sorted(others, key=str), room)
        )

    return best(0, frozenset())


def least_cost(
    paths: Sequence[Path], gpu_blocks: int, cpu_blocks: int, costs: tuple[int, int, int]
) -> int:
    """Return the least cost of two exclusive tiers, by trying every way to keep and to demote.

    `costs`: of a CPU hit, a miss and a demotion. Each request's path is on the GPU when it ends.
    """
    cpu_hit, miss, demotion = costs

    @cache
    def best(index: int, gpu: frozenset[BlockKey], cpu: frozenset[BlockKey]) -> int:
        if index == len(paths):
            return 0
        path = frozenset(paths[index])
        paid = sum(0 if block in gpu else cpu_hit if block in cpu else miss for block in path)
        above, below = sorted(gpu - path, key=str), sorted(cpu - path, key=str)
        answers = []
        for ways in product(("keep", "demote", "drop"), repeat=len(above)):
            stay = [block for block, way in zip(above, ways, strict=True) if way == "keep"]
            down = [block for block, way in zip(above, ways, strict=True) if way == "demote"]
            if len(stay) + len(path) > gpu_blocks or len(down) > cpu_blocks:
                continue
            room = min(cpu_blocks - len(down), len(below))
            for kept in combinations(below, room):
                rest = best(index + 1, path.union(stay), frozenset(down).union(kept))
                answers.append(demotion * len(down) + rest)
        return paid + min(answers)

    return best(0, frozenset(), frozenset())
