"""Sends behind signals per chunk. The names say what the newer messager of the two got wrong."""

from __future__ import annotations

from kvsim.core.handoff import SendError
from kvsim.core.signals import GENERATION_MODULUS
from tests.unit.core.rank import CONNECTIONS, PEER, Rank, every, task


def ranges(rank: Rank, request_id: int = 0) -> list[tuple[int, tuple[int, ...]]]:
    """Return (layer, source blocks) of each write of a request, in order."""
    writes = [each for each in rank.writes if each.request_id == request_id]
    return [(each.layer, each.source_ids) for each in writes]


def test_a_chunk_sends_the_blocks_it_fills_and_the_last_one_all_the_rest() -> None:
    # 10 tokens in chunks of 6 and 4: block 0 is full after the first; 1, and 2 with two tokens,
    # go with the second.
    rank = Rank()
    rank.add(task())
    for first, count in [(0, 6), (6, 4)]:
        for layer in range(3):
            rank.chunk(first, count, layer)
    assert ranges(rank) == [
        (0, (0,)),
        (1, (0,)),
        (2, (0,)),
        (0, (1, 2)),
        (1, (1, 2)),
        (2, (1, 2)),
    ]
    rank.finish()
    assert rank.reports == [(0, 0, None)]


def test_blocks_after_the_prompt_go_with_the_last_chunk() -> None:
    rank = Rank()
    reserved = task(num_tokens=8)
    fields = {name: getattr(reserved, name) for name in reserved.__slots__}
    fields |= {"source_ids": (0, 1, 2), "target_ids": (100, 101, 102)}
    rank.add(type(reserved)(**fields))
    rank.chunk(0, 8, 2)
    assert rank.written() == every(3)


def test_a_chunk_that_fills_no_block_sends_nothing() -> None:
    rank = Rank()
    rank.add(task())
    assert rank.chunk(0, 3, 2) == []
    assert [each.source_ids for each in rank.chunk(3, 4, 0)] == [(0,)]


def test_chunks_whose_signals_come_before_the_sender_looks_are_neither_merged_nor_lost() -> None:
    rank = Rank()
    for layer in range(3):
        rank.chunk(0, 6, layer)
    rank.chunk(6, 4, 0)  # the second chunk has begun
    rank.add(task())
    # Layer 0 is there as a whole, the others up to token 6.
    assert ranges(rank) == [(0, (0, 1, 2)), (1, (0,)), (2, (0,))]
    rank.chunk(6, 4, 1)
    rank.chunk(6, 4, 2)
    assert rank.written() == every(3)
    rank.finish()
    assert rank.reports == [(0, 0, None)]


def test_signals_that_come_before_their_task_are_kept() -> None:
    rank = Rank()
    assert rank.messager.num_open_tasks == 0
    rank.chunk(0, 10, 0)
    rank.add(task())
    rank.chunk(0, 10, 2)
    assert rank.written() == every(3)


def test_a_signal_of_an_unknown_slot_harms_nobody() -> None:
    rank = Rank()
    rank.add(task())
    rank.chunk(0, 10, 0, slot=4000)
    rank.chunk(0, 10, 2)
    rank.finish()
    assert rank.reports == [(0, 0, None)]


def test_a_slot_that_is_used_again_starts_from_nothing() -> None:
    rank = Rank()
    rank.add(task(0))
    rank.chunk(0, 10, 2)
    rank.add(task(1, generation=1))
    rank.chunk(0, 4, 0, generation=1)
    assert ranges(rank, 1) == [(0, (0,))]
    # What still comes of the first use is not taken for the second.
    rank.chunk(0, 10, 2, generation=0)
    assert ranges(rank, 1) == [(0, (0,))]


def test_the_uses_of_a_slot_wrap_too() -> None:
    rank = Rank()
    rank.chunk(0, 10, 2, generation=GENERATION_MODULUS - 1)
    rank.add(task(generation=0))
    assert rank.writes == []
    rank.chunk(0, 10, 2, generation=0)
    assert rank.written() == every(3)


def test_a_request_joins_late_while_others_of_its_batch_are_sent() -> None:
    rank = Rank()
    rank.add(task(0, slot=0))
    rank.chunk(0, 4, 0, slot=0)
    rank.add(task(1, slot=1))
    rank.chunk(0, 10, 2, slot=1)
    rank.chunk(4, 6, 2, slot=0)
    assert rank.written(0) == rank.written(1) == every(3)


def test_everything_cached_on_the_other_side_is_finished_at_once() -> None:
    rank = Rank()
    rank.add(task(cached=10))
    assert rank.reports == [(0, 0, None)]
    assert rank.chunk(0, 10, 0) == []


def test_a_task_with_nothing_to_send_yet_is_not_finished_early() -> None:
    rank = Rank()
    rank.add(task(num_tokens=16, cached=12))
    for layer in range(3):
        assert rank.chunk(0, 8, layer) == []  # decode has it
    assert rank.reports == []
    rank.chunk(8, 8, 2)
    assert rank.written() == every(4, first=3)


def test_an_error_is_sticky() -> None:
    rank = Rank()
    rank.add(task())
    (write,) = rank.chunk(0, 4, 0)
    rank.do(rank.messager.write_failed(write.number, "queue pair in error"))
    assert rank.reports == [(0, 0, SendError.WRITE)]
    rank.chunk(0, 4, 2)
    rank.chunk(4, 6, 2)
    assert len(rank.writes) == 1
    assert rank.reports == [(0, 0, SendError.WRITE)]


def test_the_next_chunk_of_a_request_that_failed_harms_no_other() -> None:
    rank = Rank()
    rank.add(task(0, slot=0))
    rank.add(task(1, slot=1))
    (write,) = rank.chunk(0, 4, 0, slot=0)
    rank.do(rank.messager.write_failed(write.number, "lost"))
    for slot in (0, 1):
        rank.chunk(0, 10, 2, slot=slot)
    rank.finish()
    assert rank.reports == [(0, 0, SendError.WRITE), (1, 0, None)]


def test_the_layers_of_mates_advance_independently() -> None:
    rank = Rank(is_connected=False)
    other = PEER._replace(rank=1)
    rank.add(task(0, slot=0, peer=other))
    rank.add(task(1, slot=1))
    mine = next(each for each in rank.connects if each.peer == PEER)
    rank.do(rank.messager.connected(PEER, mine.number, 0))
    for layer in range(3):
        for slot in (0, 1):
            rank.chunk(0, 10, layer, slot=slot)
    assert rank.written(0) == []
    assert rank.written(1) == every(3)


def test_a_connection_that_comes_late_gets_every_layer_once() -> None:
    rank = Rank(is_connected=False)
    rank.add(task())
    rank.chunk(0, 10, 0)
    (first,) = rank.connects
    rank.now = 5
    rank.do(rank.messager.refused(PEER, first.number, "not listening", 5))
    rank.do(rank.messager.wake(15))
    rank.chunk(0, 10, 1)
    _, second = rank.connects
    rank.do(rank.messager.connected(PEER, second.number, 16))
    rank.chunk(0, 10, 2)
    assert rank.written() == every(3)


def test_a_peer_that_cannot_be_reached_is_told_once_for_each_request() -> None:
    rank = Rank(is_connected=False)
    rank.add(task(0, slot=0))
    rank.add(task(1, slot=1))
    rank.chunk(0, 10, 2)
    (first,) = rank.connects
    rank.do(rank.messager.refused(PEER, first.number, "no route", 0))
    rank.do(rank.messager.wake(CONNECTIONS.deadline_ns))
    assert rank.reports == [(0, 0, SendError.CONNECT), (1, 0, SendError.CONNECT)]


def test_more_than_512_requests_have_a_slot_each() -> None:
    rank = Rank()
    for slot in range(600):
        rank.add(task(slot, slot=slot))
        rank.chunk(0, 10, 2, slot=slot)
    rank.finish()
    assert len(rank.reports) == 600


def test_the_block_size_is_that_of_the_model() -> None:
    # 4 tokens a block here: 6 of them fill one, whatever other engines use.
    rank = Rank()
    rank.add(task())
    assert [each.source_ids for each in rank.chunk(0, 6, 0)] == [(0,)]


def test_a_send_that_takes_no_time_is_no_special_case() -> None:
    rank = Rank()
    rank.add(task())
    rank.chunk(0, 10, 2)
    rank.finish()  # all at the same instant
    assert rank.reports == [(0, 0, None)]


def test_a_task_of_a_slot_does_not_listen_to_steps() -> None:
    rank = Rank()
    rank.add(task())
    rank.step(7, 2)
    assert rank.writes == []


def test_what_a_peer_says_keeps_its_connection() -> None:
    rank = Rank(config=type(CONNECTIONS)(deadline_ns=100, silence_ns=30))
    rank.add(task())
    rank.messager.heard(PEER, 20)
    rank.do(rank.messager.wake(49))
    assert rank.reports == []
    rank.do(rank.messager.wake(50))
    assert rank.reports == [(0, 0, SendError.PEER_LOST)]
