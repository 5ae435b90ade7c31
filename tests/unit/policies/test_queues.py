"""Queues of blocks of which only some may be chosen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvsim.policies.queues import OUTSIDE, Queues


def test_the_first_that_may_be_chosen_is_found_behind_those_that_may_not() -> None:
    queues = Queues(1, 6)
    for node in (1, 2, 3):
        queues.insert(node, 0, is_new=False)
    assert queues.first(0) is None
    queues.enlist(3)
    queues.enlist(2)
    assert queues.first(0) == 2
    queues.unlist(2)
    assert queues.first(0) == 3
    queues.remove(3)
    assert queues.first(0) is None
    assert queues.queue_of[3] == OUTSIDE
    assert queues.num_in == [2]


def test_a_new_block_takes_its_place_when_it_is_let_go_of() -> None:
    # 1 and its child 2 come in; 3 is moved behind them. Let go of, the child is queued first.
    queues = Queues(2, 6)
    queues.insert(3, 1, is_new=False)
    for node in (2, 1):
        queues.insert(node, 0, is_new=True)
    queues.move(3, 0)
    assert (queues.num_in[0], queues.num_settled(0)) == (3, 1)
    queues.settle([1, 2, 3])
    for node in (1, 2, 3):
        queues.enlist(node)
    assert queues.num_settled(0) == 3
    order = []
    while (first := queues.first(0)) is not None:
        order.append(first)
        queues.remove(first)
    assert order == [3, 2, 1]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["insert", "new", "move", "settle", "list", "unlist", "remove"]),
            st.integers(1, 7),
            st.integers(0, 1),
        ),
        max_size=300,
    )
)
def test_queues_are_what_lists_would_be(steps: list[tuple[str, int, int]]) -> None:
    queues, plain = Queues(2, 8), ([], [])  # type: Queues, tuple[list[int], list[int]]
    listed, new = set[int](), set[int]()
    for what, node, queue in steps:
        at = next((i for i in (0, 1) if node in plain[i]), None)
        if at is None:
            if what in {"insert", "new"}:
                queues.insert(node, queue, is_new=what == "new")
                plain[queue].append(node)
                new |= {node} if what == "new" else set()
            continue
        if what == "move" or (what == "settle" and node in new):
            to = queue if what == "move" else at
            if what == "move":
                queues.move(node, queue)
            else:
                queues.settle([node])
            plain[at].remove(node)
            plain[to].append(node)
            new.discard(node)
        elif what == "list":
            queues.enlist(node)
            listed.add(node)
        elif what == "unlist":
            queues.unlist(node)
            listed.discard(node)
        elif what == "remove":
            queues.remove(node)
            plain[at].remove(node)
            listed.discard(node)
            new.discard(node)
        for i in (0, 1):
            assert queues.first(i) == next((each for each in plain[i] if each in listed), None)
            assert queues.num_in[i] == len(plain[i])
            assert queues.num_listed[i] == len(listed.intersection(plain[i]))
            assert queues.num_settled(i) == len(set(plain[i]) - new)


def test_listing_and_unlisting_alone_does_not_make_a_heap_grow_for_ever() -> None:
    queues = Queues(1, 6)
    for node in range(1, 6):
        queues.insert(node, 0, is_new=False)
    for i in range(10_000):
        queues.enlist(1 + i % 5)
        queues.unlist(1 + i % 5)
    queues.enlist(4)
    assert max(map(len, queues._heaps)) <= 65  # noqa: SLF001  (its length is the point)
    assert queues.first(0) == 4
