from __future__ import annotations

from itertools import count

from kvsim.fitting.prefixes import find_prefixes
from kvsim.hitrate.paths import find_pieces
from tests.unit.fitting.traces import trace_of


def test_prefixes_are_where_many_prompts_part() -> None:
    own = count(100)
    # ten prompts part after (0, 1), ten after (0, 1, 2, 3), three after (7,)
    paths = [[0, 1, next(own)] for _ in range(10)]
    paths += [[0, 1, 2, 3, next(own)] for _ in range(10)]
    paths += [[7, next(own)] for _ in range(3)]
    trace = trace_of(*paths)
    found = find_prefixes(trace, find_pieces(trace))
    assert found.found == [(2, None), (2, 0)]  # the longer one extends the shorter by two
    assert found.longest_of([0, 1, 99]) == (0, 2)
    assert found.longest_of([0, 1, 2, 3, 99]) == (1, 4)
    assert found.longest_of([0, 1, 2]) == (0, 2)
    assert found.longest_of([7, 99]) == (None, 0)
    assert found.longest_of([]) == (None, 0)


def test_at_most_eight_are_kept_the_busiest() -> None:
    own = count(1_000)
    paths = [[root, next(own)] for root in range(12) for _ in range(9 + root)]
    trace = trace_of(*paths)
    found = find_prefixes(trace, find_pieces(trace))
    assert set(found.last) == {4, 5, 6, 7, 8, 9, 10, 11}
    assert found.found == [(1, None)] * 8
