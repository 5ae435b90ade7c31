"""Least recently used, under the prefix rule.

Source: the stack policy of R. L. Mattson, J. Gecsei, D. R. Slutz and I. L. Traiger, "Evaluation
techniques for storage hierarchies", IBM Systems Journal 9(2), 1970; what vLLM's block pool and
FastDeploy's prefix cache do on the GPU.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from kvsim.policies.rank import RankPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ports import AccessInfo, PolicyContext
    from kvsim.types import NodeId


class Stamp(StrEnum):
    """Which moment counts as the use of a request's blocks."""

    RELEASE = "release"
    """When the request lets go of them, the whole path at once: a parent is never older than its
    children."""
    ADMIT = "admit"
    """When it matches or computes them."""


class LRU(RankPolicy):
    """Evict the block whose last use is longest ago; a path is used as a whole.

    Blocks that come from the tier above keep the order they left it in.
    """

    __slots__ = ("_stamp_at",)

    def __init__(self, context: PolicyContext, *, stamp: Stamp = Stamp.RELEASE) -> None:
        super().__init__(context)
        self._stamp_at = stamp

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Stamp the nodes, unless the release that is to come will do it."""
        del depth
        if info is None:
            self._stamp_each(nodes)
        elif self._stamp_at is Stamp.ADMIT:
            self._stamp(nodes)

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        """Stamp the nodes, if admission counts."""
        del depth, info
        if self._stamp_at is Stamp.ADMIT:
            self._stamp(nodes)

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        """Stamp the path, if release counts."""
        del info
        if self._stamp_at is Stamp.RELEASE:
            self._stamp(path)


class AdmissionLRU(LRU):
    """`LRU` in which a block is used when a request is admitted, as in FastDeploy."""

    __slots__ = ()

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context, stamp=Stamp.ADMIT)
