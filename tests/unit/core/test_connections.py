"""When a rank connects, tries again, and gives up. Deadline 100, pauses of 10, 20, 40, 40, ..."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvsim.core.connections import (
    LINK_TRANSITIONS,
    Connect,
    ConnectionConfig,
    Connections,
    GaveUp,
    Link,
    LinkEvent,
    Peer,
)
from kvsim.errors import ConfigError
from tests.unit.core.rank import CONNECTIONS, PEER

OTHER = Peer(instance=1, rank=1)


def test_a_connection_is_made_when_it_is_first_wanted_and_kept() -> None:
    connections = Connections(CONNECTIONS)
    assert connections.link(PEER) is Link.IDLE
    assert connections.want(PEER, 0) == [Connect(PEER, 1)]
    assert connections.want(PEER, 1) == []
    connections.connected(PEER, 1, 2)
    assert connections.link(PEER) is Link.UP
    assert connections.want(PEER, 3) == []
    assert connections.next_wakeup_at is None


def test_each_rank_of_a_peer_has_a_connection_of_its_own() -> None:
    connections = Connections(CONNECTIONS)
    assert connections.want(PEER, 0) == [Connect(PEER, 1)]
    assert connections.want(OTHER, 0) == [Connect(OTHER, 2)]
    connections.refused(OTHER, 2, "no", 0)
    connections.connected(PEER, 1, 0)
    assert (connections.link(PEER), connections.link(OTHER)) == (Link.UP, Link.PAUSED)


def test_pauses_double_up_to_the_longest_until_the_deadline() -> None:
    connections = Connections(CONNECTIONS)
    (connect,) = connections.want(PEER, 0)
    starts = [0]
    now = 0
    outputs = []
    while connections.link(PEER) is not Link.IDLE:
        assert isinstance(connect, Connect)
        outputs = connections.refused(PEER, connect.number, "not yet", now)
        while not outputs:
            assert connections.next_wakeup_at is not None
            now = connections.next_wakeup_at
            outputs = connections.wake(now)
        (connect,) = outputs
        starts.append(now)
    # Refused at once each time: tries at 0, 10, 30, 70; the next would be at 110.
    assert [b - a for a, b in pairwise(starts)] == [10, 20, 40, 30]
    assert outputs == [GaveUp(PEER, is_lost=False, reason="not yet")]


def test_an_attempt_without_an_answer_has_an_end() -> None:
    connections = Connections(CONNECTIONS)
    connections.want(PEER, 5)
    assert connections.next_wakeup_at == 105
    assert connections.wake(104) == []
    assert connections.wake(105) == [GaveUp(PEER, is_lost=False, reason="no answer")]
    assert connections.wake(106) == []


def test_the_answer_to_an_attempt_that_was_given_up_changes_nothing() -> None:
    connections = Connections(CONNECTIONS)
    connections.want(PEER, 0)
    connections.wake(100)
    connections.connected(PEER, 1, 101)
    assert connections.link(PEER) is Link.IDLE
    assert connections.want(PEER, 102) == [Connect(PEER, 2)]
    assert connections.refused(PEER, 1, "late", 103) == []
    assert connections.link(PEER) is Link.CONNECTING
    connections.connected(PEER, 2, 104)
    assert connections.link(PEER) is Link.UP


def test_after_giving_up_the_next_want_starts_afresh() -> None:
    connections = Connections(CONNECTIONS)
    connections.want(PEER, 0)
    connections.refused(PEER, 1, "no", 0)
    connections.wake(10)
    connections.refused(PEER, 2, "no", 10)
    connections.wake(100)
    assert connections.want(PEER, 200) == [Connect(PEER, 3)]
    connections.refused(PEER, 3, "no", 200)
    assert connections.next_wakeup_at == 210


def test_a_lost_connection_is_told_once_and_made_again_when_wanted() -> None:
    connections = Connections(CONNECTIONS)
    connections.want(PEER, 0)
    assert connections.lost(PEER, "was never there") == []
    connections.connected(PEER, 1, 0)
    assert connections.lost(PEER, "reset") == [GaveUp(PEER, is_lost=True, reason="reset")]
    assert connections.lost(PEER, "reset") == []
    assert connections.lost(OTHER, "a stranger") == []
    assert connections.want(PEER, 1) == [Connect(PEER, 2)]


def test_a_peer_of_which_nothing_is_heard_is_lost() -> None:
    connections = Connections(ConnectionConfig(deadline_ns=100, silence_ns=30))
    connections.want(PEER, 0)
    connections.connected(PEER, 1, 10)
    assert connections.next_wakeup_at == 40
    connections.heard(PEER, 35)
    connections.heard(OTHER, 35)  # a stranger
    assert connections.wake(40) == []
    assert connections.wake(65) == [
        GaveUp(PEER, is_lost=True, reason="nothing was heard since 35 ns")
    ]


def test_the_table_says_all_that_can_happen_to_a_link() -> None:
    assert set(LINK_TRANSITIONS) == set(LinkEvent)
    reached = {new for steps in LINK_TRANSITIONS.values() for _, new in steps}
    assert reached == set(Link)


@pytest.mark.parametrize(
    "name", ["deadline_ns", "first_pause_ns", "longest_pause_ns", "silence_ns"]
)
def test_times_are_positive(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, not 0"):
        ConnectionConfig(**{name: 0})
