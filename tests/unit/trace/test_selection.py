from __future__ import annotations

from random import Random

import pytest

from kvsim.errors import ConfigError, UnknownNameError, UserError
from kvsim.trace import Trace, mix, sample_requests, take_between, take_sessions
from kvsim.types import PartialRule, Request


def made(*requests: tuple[int, tuple[object, ...], str | None], block_size: int = 8) -> Trace:
    """Make a trace of (arrival in s, keys, session); each gives up 2 s later."""
    return Trace(
        requests=tuple(
            Request(
                request_id=i,
                arrived_at=at * 10**9,
                block_keys=keys,
                num_input_tokens=block_size * len(keys) or 1,
                num_output_tokens=1,
                session_id=session,
                cancelled_at=(at + 2) * 10**9,
            )
            for i, (at, keys, session) in enumerate(requests)
        ),
        block_size=block_size,
        partial=PartialRule.NEVER,
        name="made",
        format="made",
    )


STORY = made((0, (1, 2), "a"), (3, (1, 3), "b"), (5, (4,), "a"), (5, (), None), (9, (4, 5), "c"))


def test_a_span_of_time_begins_at_0_again() -> None:
    part = take_between(STORY, start_s=3, end_s=9)  # 9 itself is not in it
    assert [(r.request_id, r.arrived_at // 10**9, r.block_keys) for r in part.requests] == [
        (0, 0, (1, 3)),
        (1, 2, (4,)),
        (2, 2, ()),
    ]
    assert [(r.cancelled_at or 0) - r.arrived_at for r in part.requests] == [2 * 10**9] * 3
    assert part.repairs == ("only the requests from 3 s to 9 s",)
    with pytest.raises(UserError, match="no request of made is left: only the requests from 10 s"):
        take_between(STORY, start_s=10)
    with pytest.raises(ConfigError, match="start_s must be a number of at least 0, not -1"):
        take_between(STORY, start_s=-1)


def test_named_sessions_are_kept_whole() -> None:
    part = take_sessions(STORY, ["a"])
    assert [r.block_keys for r in part.requests] == [(1, 2), (4,)]
    with pytest.raises(UnknownNameError, match="unknown session 'd'"):
        take_sessions(STORY, ["d"])


def test_what_shares_a_root_stays_or_goes_together() -> None:
    trace = made(*((i, (i % 50, 100 + i), None) for i in range(500)))
    part = sample_requests(trace, 0.3, Random(1))
    roots = {r.block_keys[0] for r in part.requests}
    # ten requests have each root: all are in, or none
    assert part.num_requests == 10 * len(roots)
    # 50 roots, each with 0.3: 15 on average with a standard deviation of 3.2
    assert 5 <= len(roots) <= 25
    assert sample_requests(trace, 0.3, Random(1)) == part
    assert sample_requests(trace, 0.3, Random(2)) != part


def test_blocks_that_all_prompts_begin_with_are_no_root() -> None:
    # all begin with 0 (as the prompts of a public trace do), so the second block decides
    trace = made(*((i, (0, 1 + i % 20), None) for i in range(200)), (999, (0,), None))
    part = sample_requests(trace, 0.5, Random(0))
    assert 20 < part.num_requests < 180
    assert part.repairs[-1] == "a sample of 0.5 of the requests, by root at block 2"
    whole = sample_requests(trace, 1, Random(0), depth=1)
    assert whole.num_requests == 201


def test_sessions_are_sampled_whole() -> None:
    trace = made(*((i, (i,), f"s{i % 40}") for i in range(400)))
    part = sample_requests(trace, 0.5, Random(3), by="session")
    names = {r.session_id for r in part.requests}
    assert part.num_requests == 10 * len(names)
    with pytest.raises(UnknownNameError, match="unknown kind of group 'turn'"):
        sample_requests(trace, 0.5, Random(3), by="turn")
    with pytest.raises(ConfigError, match="share must be a number of at least 0 and at most 1"):
        sample_requests(trace, 1.5, Random(3))


def test_a_mix_is_in_order_and_shares_nothing_between() -> None:
    both = mix([made((0, (1, 2), "a"), (4, (1,), "a")), made((0, (1,), "a"), (2, (1, 2), None))])
    assert [(r.arrived_at // 10**9, r.block_keys, r.session_id) for r in both.requests] == [
        (0, (0, 1), "0:a"),
        (0, (2,), "1:a"),
        (2, (2, 3), None),
        (4, (0,), "0:a"),
    ]
    assert both.name == "made+made"
    with pytest.raises(ConfigError, match="must have one block size and partial rule: made has 8"):
        mix([STORY, made((0, (1,), None), block_size=4)])
    with pytest.raises(UserError, match="nothing to mix"):
        mix([])
