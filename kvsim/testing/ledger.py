"""What a policy has been told of each block, to say what is wrong with a victim of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from kvsim.testing.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from kvsim.core.ports import RemoveReason

B = TypeVar("B", bound="Hashable")


class Ledger(Generic[B]):
    """Follows the calls to one policy. A block is a node or a key, by the form of the policy.

    Parameters
    ----------
    named
        What a block is called in a verdict.

    Attributes
    ----------
    num_calls
        Calls so far; they are numbered from 1. What is noted here is the call that comes next.
    known, listed
        Blocks that are in the tier, and those of them that may be chosen.
    """

    def __init__(self, named: Callable[[B], object] = repr) -> None:
        self._named = named
        self.num_calls = 0
        self.known: set[B] = set()
        self.listed: set[B] = set()
        # How a block stopped being listed the last time; not at all if it never was.
        self._unlisted: dict[B, str] = {}
        self._left: dict[B, str] = {}
        self._depth: dict[B, int] = {}
        self._request: dict[B, int] = {}
        self._at: dict[tuple[int, int], B] = {}

    def enter(self, blocks: Iterable[B]) -> None:
        """Blocks came."""
        for block in blocks:
            self.known.add(block)
            self._request.pop(block, None)
            if self._unlisted.get(block):
                del self._unlisted[block]

    def see(self, block: B, depth: int, request_index: int) -> None:
        """Note that a block is part of a request's prompt."""
        self._at[request_index, depth] = block
        self._request[block] = request_index
        self._depth[block] = depth

    def list(self, block: B) -> None:
        """Note that a block may be chosen."""
        self.listed.add(block)
        self._unlisted.pop(block, None)

    def pin(self, block: B) -> None:
        """Note that a block may not be chosen."""
        if block in self.listed:
            self._unlisted[block] = f"was pinned at call {self.num_calls + 1} and not listed since"
            self.listed.discard(block)

    def remove(self, block: B, reason: RemoveReason) -> None:
        """Note that a block left."""
        self._left[block] = f"left the tier ({reason}) at call {self.num_calls + 1}"
        if block in self.listed:
            self._unlisted[block] = ""
        self.known.discard(block)
        self.listed.discard(block)

    def judge(self, block: B) -> tuple[Finding, str] | None:
        """Return what is wrong with a block as a victim; None if nothing is."""
        if block in self.listed:
            return None
        if block not in self.known:
            left = self._left.get(block, "was never in the tier")
            return Finding.REMOVED_VICTIM, f"which {left}"
        why = self._unlisted.get(block)
        if why == "":
            return Finding.REMOVED_VICTIM, (
                f"which {self._left[block]} and came again, not listed since"
            )
        child = self._child_of(block)
        below = "" if child is None else f", and whose child {self._named(child)} is in the tier"
        if why is not None:
            return Finding.PINNED_VICTIM, f"which {why}{below}"
        if child is not None:
            return Finding.ORPHAN, f"whose child {self._named(child)} is in the tier"
        return Finding.PINNED_VICTIM, "which is in use: on_evictable has not named it yet"

    def _child_of(self, block: B) -> B | None:
        for other in self.known:
            request = self._request.get(other)
            if request is not None and self._at.get((request, self._depth[other] - 1)) == block:
                return other
        return None
