"""Blocks that decode instances keep for requests whose KV is still to come."""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING

from kvsim.core.handoff import UNDER_WAY

if TYPE_CHECKING:
    from kvsim.config import SplitConfig
    from kvsim.core.handoff import Handoff, Instance
    from kvsim.core.ops import Command
    from kvsim.types import RequestId


class Reservations:
    """Who waits for blocks to decode with, and until when they are kept.

    Parameters
    ----------
    config
        How many may be waited for, and how long.
    """

    __slots__ = ("_config", "_deadlines")

    def __init__(self, config: SplitConfig) -> None:
        self._config = config
        self._deadlines: deque[tuple[int, Handoff, int]] = deque()

    @property
    def next_deadline_at(self) -> int | None:
        """When the next blocks are taken back, if nothing changes."""
        return self._deadlines[0][0] if self._deadlines else None

    def wait(self, handoff: Handoff) -> None:
        """Let a request wait for blocks on its decode instance, in order of arrival."""
        insort(handoff.decode_instance.waiting, handoff, key=_order)

    def withdraw(self, handoff: Handoff) -> None:
        """Let a request wait no longer."""
        side = handoff.decode_instance
        if side.waiting[0] is handoff:
            side.stuck_version = -1  # another is the head now
        side.waiting.remove(handoff)

    def take(self, side: Instance, commands: list[Command], now: int) -> list[Handoff]:
        """Give blocks to those that wait, in their order; return who has got them.

        Ops that this takes are added to `commands`.
        """
        most = self._config.max_receiving
        taken: list[Handoff] = []
        while side.waiting and side.stuck_version != side.manager.version:
            if most is not None and side.num_receiving >= most:
                break
            handoff = side.waiting[0]
            sequence = handoff.for_decode()
            if not side.scheduler.reserve(sequence, commands, now):
                side.stuck_version = side.manager.version
                break
            del side.waiting[0]
            side.num_receiving += 1
            handoff.reserved(sequence, now)
            taken.append(handoff)
            if self._config.reserve_timeout_ns is not None:
                deadline_at = now + self._config.reserve_timeout_ns
                self._deadlines.append((deadline_at, handoff, handoff.attempt))
        return taken

    def release(self, handoff: Handoff) -> None:
        """Wait no longer for the KV of a request: it has come, or never will."""
        side = handoff.decode_instance
        side.num_receiving -= 1
        side.unread.pop(handoff.request.request_id, None)

    def expired(self, now: int) -> list[Handoff]:
        """Return, once, the requests whose KV should have been there by `now`."""
        late: list[Handoff] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, handoff, attempt = self._deadlines.popleft()
            if is_awaited(handoff, attempt):
                late.append(handoff)
        return late

    def forget_kept(self) -> None:
        """Forget deadlines that no longer matter, as far as they come next."""
        while self._deadlines and not is_awaited(*self._deadlines[0][1:]):
            self._deadlines.popleft()


def is_awaited(handoff: Handoff, attempt: int) -> bool:
    """Whether this is the present attempt of the request, and its KV is still to come."""
    return handoff.attempt == attempt and handoff.phase in UNDER_WAY


def _order(handoff: Handoff) -> RequestId:
    return handoff.request.request_id
