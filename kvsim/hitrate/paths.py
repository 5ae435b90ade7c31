"""The requests of a trace as paths of the prefix tree, in the two layouts that the lab works on.

Pieces: what two requests share and no request between them touches is one contiguous piece of
both paths, since whoever touches a block touches its ancestors. A trace has few of them (1.4 a
request on a real one), so that work done piece by piece is hardly any.

Nodes: a small int for each block, for policies that rank blocks one by one.

Source: D. D. Sleator and R. E. Tarjan, "A data structure for dynamic trees", JCSS 26(3), 1983: the
pieces are its preferred paths, O(log n) new ones a request, amortised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kvsim.core.tree import ROOT
from kvsim.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.trace import Trace
    from kvsim.types import BlockKey, NodeId, RequestId

    KeyPath: TypeAlias = Sequence[BlockKey]
    Piece: TypeAlias = tuple[int, RequestId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Who had the blocks of each request before.

    Parameters
    ----------
    previous
        `previous[r]`: (end, request) for each piece of request r's path, root first: the blocks
        before position `end`, and after the piece before, were last in that request's prompt.
    lengths
        Blocks of each request.
    """

    previous: list[list[Piece]]
    lengths: list[int]

    def known(self) -> list[int]:
        """Return how many leading blocks of each request some earlier request had.

        What a cache that never evicts would hit.
        """
        return [pieces[-1][0] if pieces else 0 for pieces in self.previous]

    def following(self) -> list[list[Piece]]:
        """Return for each request the pieces of its path that are wanted again, and by whom next.

        As `previous`, the other way in time. What is left of the path is never wanted again.
        """
        following: list[list[Piece]] = [[] for _ in self.previous]
        for request, pieces in enumerate(self.previous):
            for end, owner in pieces:
                following[owner].append((end, request))  # the upper parts of a piece go first
        return following


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePaths:
    """Paths as lists of nodes. Node 0 is the root; the others count up as blocks first appear.

    Parameters
    ----------
    paths
        The nodes of each request's prompt, root first.
    parent, key_of
        By node.
    known
        Leading blocks of each request that some earlier request had.
    """

    paths: list[list[NodeId]]
    parent: list[NodeId]
    key_of: list[BlockKey]
    known: list[int]


def find_pieces(trace: Trace) -> Pieces:
    """Cut the paths of a trace into pieces.

    Raises
    ------
    UserError
        If keys do not name their whole prefix, or there is nothing to hit.
    """
    paths = _key_paths(trace)
    previous: list[list[Piece]] = []
    # The first block of each piece that nobody has wanted again yet -> the request that had it.
    head: dict[BlockKey, RequestId] = {}
    take = head.pop
    for request, path in enumerate(paths):
        pieces: list[Piece] = []
        start, length = 0, len(path)
        while start < length:
            owner = take(path[start], None)
            if owner is None:
                break
            old = paths[owner]
            size = len(old)
            end = size if size < length else length  # `min` is a call, in the hottest loop
            if end <= start or old[end - 1] != path[end - 1]:
                low = start + 1
                while low < end:
                    middle = (low + end) >> 1
                    if old[middle] == path[middle]:
                        low = middle + 1
                    else:
                        end = middle
                end = low
            # Chained keys that agree at `end` agree before it; these may not be chained.
            top = start - 1 if start else 0
            if old[top:end] != path[top:end]:
                raise _not_chained(trace, request)
            pieces.append((end, owner))
            if end < size:
                head[old[end]] = owner
            start = end
        previous.append(pieces)
        if length:
            head[path[0]] = request
    found = Pieces(previous=previous, lengths=list(map(len, paths)))
    _require_chained(trace, paths, found.known())
    return found


def number_nodes(trace: Trace) -> NodePaths:
    """Give each block of a trace a node.

    By pieces, so that no key is looked up but the first of each.

    Raises
    ------
    UserError
        As `find_pieces`.
    """
    pieces = find_pieces(trace)
    parent: list[NodeId] = [ROOT]
    key_of: list[BlockKey] = [None]
    paths: list[list[NodeId]] = []
    for request, found in zip(trace.requests, pieces.previous, strict=True):
        nodes: list[NodeId] = []
        for end, owner in found:
            nodes += paths[owner][len(nodes) : end]
        new = request.block_keys[len(nodes) :]
        if new:
            first = len(parent)
            fresh = list(range(first, first + len(new)))
            parent.append(nodes[-1] if nodes else ROOT)
            parent += fresh[:-1]
            key_of += new
            nodes += fresh
        paths.append(nodes)
    return NodePaths(paths=paths, parent=parent, key_of=key_of, known=pieces.known())


def _key_paths(trace: Trace) -> list[KeyPath]:
    paths = [request.block_keys for request in trace.requests]
    if not any(paths):
        what = "full blocks" if paths else "requests"
        raise UserError(f"trace {trace.name} has no {what}: there is nothing to hit")
    return paths


def _require_chained(trace: Trace, paths: Sequence[KeyPath], known: Sequence[int]) -> None:
    """Raise `UserError` unless there are as many keys as blocks that nobody had before.

    A key that comes again below another parent, or twice in one path, is counted twice.
    """
    seen: set[BlockKey] = set()
    if sum(map(len, paths)) - sum(known) == len(seen.union(*paths)):
        return
    for request, (path, start) in enumerate(zip(paths, known, strict=True)):
        new = path[start:]
        if len(set(new)) < len(new) or not seen.isdisjoint(new):
            raise _not_chained(trace, request)
        seen.update(new)


def _not_chained(trace: Trace, request: RequestId) -> UserError:
    return UserError(
        f"trace {trace.name}: a block key of request {request} does not stand for its whole prefix:"
        " it has another block before it elsewhere; kvsim.load_trace renumbers such keys"
    )
