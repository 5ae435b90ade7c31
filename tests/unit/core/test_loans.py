"""Ops between instances hold what they use of an attempt, however it ends."""

from __future__ import annotations

from random import Random

import pytest

from kvsim.config import CacheConfig
from kvsim.core.attempt import Attempt, BlockLayout
from kvsim.core.manager import CacheManager
from kvsim.core.ops import Completion, Outcome, Settled
from kvsim.errors import MisuseError
from kvsim.events import EndReason
from kvsim.policies import policy_factory
from tests.unit.core.stage import WAIT, ask, served

F, S, T = 101, 102, 103  # op ids: a Forward and two sends


def manager(*, gpu: int = 12, cpu: int = 0) -> CacheManager:
    _, make, _ = policy_factory("lru")
    config = CacheConfig(
        block_size=4, tier_blocks=(gpu, cpu), swap_batch_blocks=1, low_watermark_blocks=0
    )
    return CacheManager(config, make, rng=Random(0))


def admitted(cache: CacheManager, request_id: int, num_tokens: int) -> Attempt:
    """Admit a request whose prompt is tokens 0, 1, ...; return its attempt."""
    request = ask(request_id, range(num_tokens))
    layout = BlockLayout(request, 4)
    num_blocks = layout.num_blocks(num_tokens)
    attempt = Attempt(request, number=0, layout=layout, num_made=0, num_wanted_blocks=num_blocks)
    cache.admit(attempt, 0)
    assert attempt.is_admitted
    return attempt


def end(cache: CacheManager, op_id: int, outcome: Outcome = Outcome.DONE) -> list[Attempt]:
    """Let an op end."""
    ended = cache.settle(Completion(op_id=op_id, outcome=outcome, started_at=0, finished_at=0))
    cache.check()
    return ended


def computed(cache: CacheManager, request_id: int, num_tokens: int) -> Attempt:
    """Return an attempt whose blocks are there."""
    attempt = admitted(cache, request_id, num_tokens)
    cache.fill(attempt, num_tokens // 4, F)
    cache.issue_forward(F, ())
    end(cache, F)
    return attempt


# -- the lending side


def test_a_block_that_is_read_elsewhere_cannot_be_evicted_after_its_request_has_ended() -> None:
    cache = manager()
    attempt = computed(cache, 0, 8)
    block_ids, after = cache.loans.lend(attempt, 0, 2, S)
    assert (block_ids, after) == (tuple(attempt.table), ())
    cache.release(attempt, EndReason.FINISHED, 0)
    assert cache.num_evictable_blocks == 0
    end(cache, S)
    assert cache.num_evictable_blocks == 2


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.FAILED, Outcome.CANCELLED])
def test_the_block_that_is_not_full_is_kept_for_its_reader_too(outcome: Outcome) -> None:
    cache = manager()
    attempt = computed(cache, 0, 10)
    cache.loans.lend(attempt, 0, 3, S)
    cache.release(attempt, EndReason.FINISHED, 0)
    assert cache.num_free_blocks() == 9
    end(cache, S, outcome)
    assert cache.num_free_blocks() == 10
    assert cache.num_evictable_blocks == 2
    assert not cache.has_open_ops


def test_after_a_timeout_nothing_comes_back_before_the_op_is_at_rest() -> None:
    cache = manager()
    attempt = computed(cache, 0, 10)
    cache.loans.lend(attempt, 0, 3, S)
    end(cache, S, Outcome.TIMED_OUT)
    cache.release(attempt, EndReason.CANCELLED, 0)
    assert (cache.num_free_blocks(), cache.num_evictable_blocks) == (9, 0)
    cache.settle(Settled(op_id=S, finished_at=0))
    cache.check()
    assert (cache.num_free_blocks(), cache.num_evictable_blocks) == (10, 2)


def test_two_readers_of_one_block_are_both_waited_for() -> None:
    cache = manager()
    attempt = computed(cache, 0, 10)
    cache.loans.lend(attempt, 0, 3, S)
    cache.loans.lend(attempt, 1, 2, T)
    cache.release(attempt, EndReason.FINISHED, 0)
    end(cache, S)
    assert cache.num_evictable_blocks == 0
    end(cache, T)
    assert cache.num_evictable_blocks == 2


def test_of_a_block_computed_twice_the_one_that_stays_is_read() -> None:
    cache = manager()
    first, twin = admitted(cache, 0, 8), admitted(cache, 1, 8)
    for attempt in (first, twin):
        cache.fill(attempt, 2, F)
    cache.issue_forward(F, ())
    block_ids, after = cache.loans.lend(twin, 0, 2, S)
    assert block_ids == tuple(first.table) != tuple(twin.table)
    assert after == (F,)
    end(cache, F)
    assert cache.num_free_blocks() == 10  # the twin's blocks
    end(cache, S)


def test_a_reader_names_the_copy_that_still_brings_its_block() -> None:
    stage = served(WAIT)
    attempt = stage.manager._cache.live[2]  # noqa: SLF001  (it is on its way up)
    _, after = stage.manager.loans.lend(attempt, 0, 1, S)
    assert after == (stage.transfer.op_id,)


def test_a_copy_that_fails_is_taken_back_when_its_reader_has_failed_as_well() -> None:
    stage = served(WAIT)
    cache = stage.manager
    attempt = cache._cache.live[2]  # noqa: SLF001
    cache.loans.lend(attempt, 0, 1, S)
    stage.scheduler.cancel(2, 205)  # the reader holds the block that is to come
    copy = stage.transfer
    stage.answer(copy, Outcome.FAILED, at=210)
    assert cache.is_open(copy.op_id)
    end(cache, S, Outcome.FAILED)
    assert not cache.has_open_ops
    assert cache.num_free_blocks() == 2


@pytest.mark.parametrize(("start", "end_"), [(0, 4), (2, 2), (-1, 1)])
def test_blocks_that_are_not_there_cannot_be_lent(start: int, end_: int) -> None:
    cache = manager()
    attempt = computed(cache, 0, 10)
    with pytest.raises(MisuseError, match=f"blocks {start} to {end_} are not in a table of 3"):
        cache.loans.lend(attempt, start, end_, S)


def test_an_op_lends_once() -> None:
    cache = manager()
    attempt = computed(cache, 0, 10)
    cache.loans.lend(attempt, 0, 1, S)
    with pytest.raises(MisuseError, match=f"op {S} is open already"):
        cache.loans.lend(attempt, 1, 2, S)


# -- the receiving side


def test_what_is_received_is_readable_when_it_has_come() -> None:
    cache = manager()
    attempt = admitted(cache, 0, 10)
    assert cache.loans.receive(attempt, 0, 2, S) == tuple(attempt.table[:2])
    assert cache.loans.receive(attempt, 2, 3, T) == tuple(attempt.table[2:])
    assert not cache.loans.is_readable(attempt)
    end(cache, T)
    assert not cache.loans.is_readable(attempt)
    end(cache, S)
    assert cache.loans.is_readable(attempt)


def test_what_comes_after_its_request_has_ended_stays_as_cache() -> None:
    cache = manager()
    attempt = admitted(cache, 0, 10)
    cache.loans.receive(attempt, 0, 3, S)
    cache.release(attempt, EndReason.CANCELLED, 0)
    assert (cache.num_free_blocks(), cache.num_evictable_blocks) == (9, 0)
    end(cache, S)
    assert (cache.num_free_blocks(), cache.num_evictable_blocks) == (10, 2)


def test_what_does_not_come_is_free_again() -> None:
    cache = manager()
    attempt = admitted(cache, 0, 10)
    cache.loans.receive(attempt, 0, 3, S)
    cache.release(attempt, EndReason.CANCELLED, 0)
    end(cache, S, Outcome.FAILED)
    assert cache.num_free_blocks() == 12


def test_what_comes_below_a_block_that_was_lost_is_not_kept() -> None:
    cache = manager()
    attempt = admitted(cache, 0, 8)
    cache.loans.receive(attempt, 0, 1, S)
    cache.loans.receive(attempt, 1, 2, T)
    assert end(cache, S, Outcome.FAILED) == [attempt]
    end(cache, T)
    assert cache.num_free_blocks() == 12
    assert cache.match(attempt.keys) == ()


def test_each_of_two_ops_gives_back_the_twins_it_wrote_itself() -> None:
    # Request 1 receives in two ops what 0 has received meanwhile.
    cache = manager()
    first, twin = admitted(cache, 0, 8), admitted(cache, 1, 8)
    cache.loans.receive(first, 0, 2, F)
    end(cache, F)
    cache.loans.receive(twin, 0, 1, S)
    cache.loans.receive(twin, 1, 2, T)
    assert cache.num_free_blocks() == 8
    end(cache, S)
    assert cache.num_free_blocks() == 9
    end(cache, T)
    assert cache.num_free_blocks() == 10
    assert twin.table == first.table


def test_ranges_are_received_in_order() -> None:
    cache = manager()
    attempt = admitted(cache, 0, 10)
    with pytest.raises(MisuseError, match="blocks 1 to 2 do not follow the 0 that are there"):
        cache.loans.receive(attempt, 1, 2, S)
