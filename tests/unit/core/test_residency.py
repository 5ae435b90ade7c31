"""The copy machine: every step of the table, and no other."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.residency import TRANSITIONS, Copies, CopyEvent, CopyState
from kvsim.errors import IllegalTransitionError, KvsimError

ABSENT, INCOMING, READY, LEAVING = CopyState
NODE = 1
WAY_TO: dict[CopyState, list[CopyEvent]] = {
    ABSENT: [],
    INCOMING: [CopyEvent.RESERVE],
    READY: [CopyEvent.RESERVE, CopyEvent.WRITTEN],
    LEAVING: [CopyEvent.RESERVE, CopyEvent.WRITTEN, CopyEvent.LEAVE],
}
# architecture.md, section 3, with LEAVING for the source of a write-back under way.
LEGAL = {
    (ABSENT, CopyEvent.RESERVE): INCOMING,
    (INCOMING, CopyEvent.WRITTEN): READY,
    (INCOMING, CopyEvent.LOST): ABSENT,
    (INCOMING, CopyEvent.TIMED_OUT): ABSENT,
    (READY, CopyEvent.LEAVE): LEAVING,
    (READY, CopyEvent.DROP): ABSENT,
    (LEAVING, CopyEvent.RESCUE): READY,
    (LEAVING, CopyEvent.LEFT): ABSENT,
}
ILLEGAL = [(s, e) for s in CopyState for e in CopyEvent if (s, e) not in LEGAL]


def copy_in(state: CopyState) -> Copies:
    """Return three nodes of which NODE has a copy in `state`."""
    copies = Copies(4)
    for event in WAY_TO[state]:
        copies.move([NODE], event)
    assert copies.state[NODE] == state
    return copies


def test_the_table_has_these_steps_and_no_other() -> None:
    steps = {(old, event): new for event, (old, new) in TRANSITIONS.items()}
    assert steps == LEGAL


@pytest.mark.parametrize(("state", "event"), LEGAL)
def test_a_legal_step_ends_where_the_table_says(state: CopyState, event: CopyEvent) -> None:
    copies = copy_in(state)
    copies.move([NODE], event)
    assert copies.state[NODE] == LEGAL[state, event]


@pytest.mark.parametrize(("state", "event"), ILLEGAL)
def test_an_illegal_step_says_what_was_seen_and_what_is_right(
    state: CopyState, event: CopyEvent
) -> None:
    copies = copy_in(state)
    wanted = TRANSITIONS[event][0].name
    with pytest.raises(
        IllegalTransitionError,
        match=f"copy of node 1 is {state.name}; {event.name} needs {wanted}",
    ):
        copies.move([NODE], event)
    assert copies.state[NODE] == state


def test_the_root_is_ready_on_every_tier_and_counted_nowhere() -> None:
    copies = Copies(4)
    assert copies.state[0] == READY
    assert copies.num_in == [3, 0, 0, 0]


def test_a_reserved_copy_holds_its_parent() -> None:
    copies = Copies(4)
    copies.reserve([1, 2], [7, 8], parent=[0, 0, 1, 0])
    assert copies.state == [READY, INCOMING, INCOMING, ABSENT]
    assert copies.blocks_of([1, 2]) == [7, 8]
    # The root has one hold of its own; node 2 holds node 1, node 1 the root.
    assert copies.holds == [2, 1, 0, 0]


def test_a_chain_is_held_by_its_children_and_the_reference_at_its_end() -> None:
    copies = Copies(4)
    copies.reserve_chain([1, 2, 3], [7, 8, 9])
    assert copies.state == [READY, INCOMING, INCOMING, INCOMING]
    assert copies.holds[1:] == [1, 1, 1]
    assert copies.num_in == [0, 3, 0, 0]


@pytest.mark.parametrize("state", [INCOMING, READY, LEAVING])
def test_a_block_that_is_there_cannot_be_reserved(state: CopyState) -> None:
    with pytest.raises(IllegalTransitionError, match=f"is {state.name}; RESERVE needs ABSENT"):
        copy_in(state).reserve([NODE], [0], parent=[0] * 4)
    with pytest.raises(IllegalTransitionError, match=f"is {state.name}; RESERVE needs ABSENT"):
        copy_in(state).reserve_chain([NODE], [0])


def test_a_write_back_ends_above_and_below_in_one_step() -> None:
    above, below = copy_in(LEAVING), copy_in(INCOMING)
    above.move_down(below, [NODE])
    assert (above.state[NODE], below.state[NODE]) == (ABSENT, READY)
    assert above.num_in == [3, 0, 0, 0]
    assert below.num_in == [2, 0, 1, 0]


@pytest.mark.parametrize("state", [ABSENT, INCOMING, READY])
def test_what_is_not_leaving_cannot_end_a_write_back(state: CopyState) -> None:
    with pytest.raises(IllegalTransitionError, match="LEFT needs LEAVING"):
        copy_in(state).move_down(copy_in(INCOMING), [NODE])


@pytest.mark.parametrize("state", [ABSENT, READY, LEAVING])
def test_a_write_back_ends_only_in_a_copy_that_was_reserved(state: CopyState) -> None:
    with pytest.raises(IllegalTransitionError, match="WRITTEN needs INCOMING"):
        copy_in(LEAVING).move_down(copy_in(state), [NODE])


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(CopyEvent)), max_size=30))
def test_the_counts_follow_any_steps(steps: list[tuple[int, CopyEvent]]) -> None:
    copies = Copies(4)
    for node, event in steps:
        if copies.state[node] == TRANSITIONS[event][0]:
            copies.move([node], event)
    found = Counter(copies.state[1:])
    assert copies.num_in == [found[state] for state in CopyState]


# -- peel: the chain 1 - 2 - 3 below the root, and 4, another child of 1

PARENT = [0, 0, 1, 2, 1]


def ready(nodes: list[int]) -> Copies:
    """Return a tier in which these nodes are READY."""
    copies = Copies(5)
    copies.reserve(nodes, nodes, PARENT)
    copies.move(nodes, CopyEvent.WRITTEN)
    return copies


def peeled(
    copies: Copies,
    leaf: int,
    n: int,
    rank: list[int],
    *,
    limit: int = 9,
    event: CopyEvent = CopyEvent.LEAVE,
) -> tuple[list[int], int]:
    """Return what is taken, and the next bare ancestor."""
    out: list[int] = []
    bare = copies.peel(PARENT, event, leaf, n, rank, limit, out)
    return out, bare


@pytest.mark.parametrize(
    ("event", "becomes"), [(CopyEvent.LEAVE, LEAVING), (CopyEvent.DROP, ABSENT)]
)
def test_a_leaf_goes_first_and_then_its_parents_while_they_rank_no_higher(
    event: CopyEvent, becomes: CopyState
) -> None:
    copies = ready([1, 2, 3])
    assert peeled(copies, 3, 5, [0, 1, 1, 1, 0], limit=1, event=event) == ([3, 2, 1], -1)
    assert copies.state[1:] == [becomes, becomes, becomes, ABSENT]
    assert copies.num_in[READY] == 0
    assert copies.holds == [1, 0, 0, 0, 0]


def test_a_parent_that_ranks_higher_is_bare_and_stays() -> None:
    copies = ready([1, 2, 3])
    assert peeled(copies, 3, 5, [0, 9, 1, 1, 0], limit=1) == ([3, 2], 1)
    assert copies.state[1] == READY


def test_no_more_is_taken_than_asked_for() -> None:
    assert peeled(ready([1, 2, 3]), 3, 2, [0] * 5) == ([3, 2], 1)


def test_a_parent_with_another_child_is_not_bare() -> None:
    assert peeled(ready([1, 2, 3, 4]), 3, 5, [0] * 5) == ([3, 2], -1)


def test_a_parent_that_is_not_there_is_not_bare() -> None:
    # 1 is still being written: its child may go, it may not.
    copies = Copies(5)
    copies.reserve([1, 2], [1, 2], PARENT)
    copies.move([2], CopyEvent.WRITTEN)
    assert peeled(copies, 2, 5, [0] * 5) == ([2], -1)


def test_what_is_held_cannot_be_taken() -> None:
    copies = ready([1, 2, 3])
    with pytest.raises(KvsimError):
        peeled(copies, 2, 5, [0] * 5)
    assert copies.state[2] == READY
