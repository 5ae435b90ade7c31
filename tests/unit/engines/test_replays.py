from __future__ import annotations

import pytest

from kvsim.engines import Evicts, Tail, explain
from kvsim.engines.radix import radix_runs
from kvsim.engines.replays import list_runs, runs_of
from kvsim.errors import UserError
from tests.unit.stories import trace_of

# Six blocks: abcd and pq fill them; "ab" renews a and b; "x" needs one block.
STORY = (("abcd", 16), ("pq", 8), ("ab", 8), ("x", 4), ("abcd", 16))


@pytest.mark.parametrize(
    ("evicts", "tail", "last"),
    [
        (Evicts.BLOCK, Tail.OLD, 3),  # d goes: the deepest of what was used longest ago
        (Evicts.NODE, Tail.OLD, 2),  # "ab" has split abcd, and cd, used at 0, goes as a whole
        (Evicts.NODE, Tail.RENEWED, 4),  # the split has renewed cd, so pq, used at 1, goes
        (Evicts.LIST, Tail.OLD, 2),  # the list is c d p q a b: c goes, and d stays for nothing
    ],
)
def test_what_is_evicted_decides_what_is_found_again(evicts: Evicts, tail: Tail, last: int) -> None:
    assert list(runs_of(trace_of(*STORY), evicts, tail, 6)) == [0, 0, 2, 0, last]


def test_a_whole_node_leaves_more_room_than_was_needed() -> None:
    # abc fills three blocks; d needs one and takes all three, so that e finds room beside it.
    paths = [tuple("abc"), ("d",), ("e",), ("d",), ("e",)]
    assert radix_runs(paths, 3, renews_tail=True) == [0, 0, 0, 1, 1]


def test_a_parent_goes_once_its_last_child_has_gone() -> None:
    # abc, abd: the node ab has the children c and d. wxyz needs all: c, d, then ab.
    paths = [tuple("abc"), tuple("abd"), tuple("wxyz"), tuple("abc")]
    assert radix_runs(paths, 4, renews_tail=True) == [0, 2, 0, 0]


def test_a_path_is_never_its_own_victim_and_keeps_its_first_blocks() -> None:
    paths = [tuple("ab"), tuple("abcde"), tuple("abcde")]
    assert radix_runs(paths, 3, renews_tail=True) == [0, 2, 3]
    assert radix_runs(paths, 1, renews_tail=True) == [0, 1, 1]


def test_a_list_keeps_what_depends_on_what_has_gone() -> None:
    # b and c of abc are there still, and are no hit: the run begins with a.
    paths = [tuple("abc"), ("d",), tuple("abc")]
    assert list_runs(paths, 3) == [0, 0, 0]


def test_a_request_without_blocks_finds_none() -> None:
    paths: list[tuple[str, ...]] = [(), ("a",), (), ("a",)]
    assert radix_runs(paths, 2, renews_tail=True) == list_runs(paths, 2) == [0, 0, 0, 1]
    assert runs_of(trace_of(), Evicts.NODE, Tail.OLD, 2) == []


def test_keys_that_do_not_name_their_prefix_are_refused() -> None:
    trace = trace_of(("ab", 8), ("cb", 8))
    with pytest.raises(UserError, match="does not stand for its whole prefix"):
        runs_of(trace, Evicts.BLOCK, Tail.OLD, 6)
    with pytest.raises(UserError, match="does not stand for its whole prefix"):
        explain(trace, gpu_blocks=6)
