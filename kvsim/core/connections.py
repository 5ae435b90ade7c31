"""When a rank connects to its peers, tries again, and gives one up: decisions only.

A connection is made when it is first wanted and kept. An attempt that fails is followed by another
after a pause that doubles, until the deadline of the want; then whoever wants it is told once, and
the next want starts afresh. A peer of which nothing is heard for too long counts as lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Peer(NamedTuple):
    """One rank of another instance."""

    instance: int
    rank: int


class Link(StrEnum):
    """What a rank has with a peer."""

    IDLE = "idle"
    CONNECTING = "connecting"
    """An attempt is under way."""
    PAUSED = "paused"
    """The last attempt failed; the next one comes after a pause."""
    UP = "up"


class LinkEvent(StrEnum):
    """What can happen to a link."""

    WANTED = "wanted"
    CONNECTED = "connected"
    REFUSED = "refused"
    RETRIED = "retried"
    GIVEN_UP = "given up"
    LOST = "lost"


LINK_TRANSITIONS: Final[Mapping[LinkEvent, tuple[tuple[Link, Link], ...]]] = {
    LinkEvent.WANTED: ((Link.IDLE, Link.CONNECTING),),
    LinkEvent.CONNECTED: ((Link.CONNECTING, Link.UP),),
    LinkEvent.REFUSED: ((Link.CONNECTING, Link.PAUSED),),
    LinkEvent.RETRIED: ((Link.PAUSED, Link.CONNECTING),),
    LinkEvent.GIVEN_UP: ((Link.CONNECTING, Link.IDLE), (Link.PAUSED, Link.IDLE)),
    LinkEvent.LOST: ((Link.UP, Link.IDLE),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    """How long a rank tries.

    Parameters
    ----------
    deadline_ns
        From the first want to giving up.
    first_pause_ns, longest_pause_ns
        Before the second attempt, and at most; each pause is twice the one before.
    silence_ns
        A peer that was not heard for so long is lost; None: it is never lost by silence.
    """

    deadline_ns: int = 10 * 10**9  # several restarts of a network card's queue pair
    first_pause_ns: int = 10**7
    longest_pause_ns: int = 10**9
    silence_ns: int | None = None

    def __post_init__(self) -> None:
        for name in ("deadline_ns", "first_pause_ns", "longest_pause_ns"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.silence_ns is not None and self.silence_ns < 1:
            raise ConfigError(f"silence_ns must be at least 1, not {self.silence_ns!r}")


class Connect(NamedTuple):
    """Start an attempt to connect. `number` names it in the result."""

    peer: Peer
    number: int


class GaveUp(NamedTuple):
    """No connection came about before the deadline, or the one there was is lost."""

    peer: Peer
    is_lost: bool
    reason: str


ConnectionOutput: TypeAlias = Connect | GaveUp


class _State:
    __slots__ = ("heard_at", "link", "number", "pause_ns", "reason", "retry_at", "until")

    def __init__(self) -> None:
        self.link = Link.IDLE
        self.number = 0
        self.pause_ns = 0
        self.retry_at = 0
        self.until = 0
        self.heard_at = 0
        self.reason = ""


class Connections:
    """The connections of one rank to all its peers.

    Each call returns what is to be done now: attempts to start, and peers that are given up.
    """

    __slots__ = ("_config", "_next_number", "_states")

    def __init__(self, config: ConnectionConfig) -> None:
        self._config = config
        self._states: dict[Peer, _State] = {}
        self._next_number = 0

    def link(self, peer: Peer) -> Link:
        """Return what there is with a peer."""
        state = self._states.get(peer)
        return Link.IDLE if state is None else state.link

    @property
    def next_wakeup_at(self) -> int | None:
        """When `wake` must be called, if nothing comes before."""
        return min(
            (at for state in self._states.values() if (at := self._due_at(state)) is not None),
            default=None,
        )

    def want(self, peer: Peer, now: int) -> list[ConnectionOutput]:
        """Ask for a connection; nothing is to be done if it is there or being made."""
        state = self._states.setdefault(peer, _State())
        if state.link is not Link.IDLE:
            return []
        self._step(state, LinkEvent.WANTED)
        state.pause_ns = self._config.first_pause_ns
        state.until = now + self._config.deadline_ns
        state.reason = ""
        return [self._start(peer, state)]

    def connected(self, peer: Peer, number: int, now: int) -> list[ConnectionOutput]:
        """Take note that an attempt succeeded; one that was given up changes nothing."""
        state = self._current(peer, number)
        if state is not None:
            self._step(state, LinkEvent.CONNECTED)
            state.heard_at = now
        return []

    def refused(self, peer: Peer, number: int, reason: str, now: int) -> list[ConnectionOutput]:
        """Take note that an attempt failed; one that was given up changes nothing."""
        state = self._current(peer, number)
        if state is None:
            return []
        state.reason = reason
        self._step(state, LinkEvent.REFUSED)
        state.retry_at = now + state.pause_ns
        state.pause_ns = min(2 * state.pause_ns, self._config.longest_pause_ns)
        return self.wake(now)

    def heard(self, peer: Peer, now: int) -> None:
        """Take note of a sign of life."""
        state = self._states.get(peer)
        if state is not None:
            state.heard_at = max(state.heard_at, now)

    def lost(self, peer: Peer, reason: str) -> list[ConnectionOutput]:
        """Take note that a connection broke; does nothing if there is none."""
        state = self._states.get(peer)
        if state is None or state.link is not Link.UP:
            return []
        self._step(state, LinkEvent.LOST)
        return [GaveUp(peer, is_lost=True, reason=reason)]

    def wake(self, now: int) -> list[ConnectionOutput]:
        """Do what is due by `now`."""
        outputs: list[ConnectionOutput] = []
        for peer, state in self._states.items():
            due_at = self._due_at(state)
            if due_at is None or due_at > now:
                continue
            if state.link is Link.UP:
                outputs += self.lost(peer, f"nothing was heard since {state.heard_at} ns")
            elif now >= state.until:
                self._step(state, LinkEvent.GIVEN_UP)
                reason = state.reason or "no answer"
                outputs.append(GaveUp(peer, is_lost=False, reason=reason))
            else:
                self._step(state, LinkEvent.RETRIED)
                outputs.append(self._start(peer, state))
        return outputs

    def _due_at(self, state: _State) -> int | None:
        if state.link is Link.CONNECTING:
            return state.until
        if state.link is Link.PAUSED:
            return min(state.retry_at, state.until)
        if state.link is Link.UP and self._config.silence_ns is not None:
            return state.heard_at + self._config.silence_ns
        return None

    def _current(self, peer: Peer, number: int) -> _State | None:
        state = self._states.get(peer)
        is_current = state is not None and state.number == number
        return state if is_current and self.link(peer) is Link.CONNECTING else None

    def _start(self, peer: Peer, state: _State) -> Connect:
        self._next_number += 1
        state.number = self._next_number
        return Connect(peer, state.number)

    @staticmethod
    def _step(state: _State, event: LinkEvent) -> None:
        state.link = next(new for old, new in LINK_TRANSITIONS[event] if old is state.link)
