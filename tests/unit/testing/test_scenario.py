"""The writer of ops: fresh blocks, `after`, and the batch as a difference. Two tokens a block."""

from __future__ import annotations

import pytest

from kvsim.core.ops import Completion, Gate, Member, Outcome, Place, Slice
from kvsim.errors import MisuseError
from kvsim.testing import BackendTraits, Scenario

TRAITS = BackendTraits(block_size=2)  # prompts of two blocks, 4 tokens


def scenario() -> Scenario:
    return Scenario(TRAITS.spec())


def answer(op_id: int, outcome: Outcome = Outcome.DONE, *, steps_done: int = 0) -> Completion:
    return Completion(op_id, outcome, started_at=0, finished_at=0, steps_done=steps_done)


def test_a_prompt_is_computed_into_fresh_blocks() -> None:
    write = scenario()
    first, second = write.prefill(), write.prefill()
    assert (first.op_id, second.op_id) == (0, 1)
    assert first.prefill == (Slice(0, 0, 0, 4, (0, 1)),)
    assert second.prefill == (Slice(1, 0, 0, 4, (2, 3)),)
    assert first.after == second.after == ()


def test_a_copy_waits_for_the_writer_of_its_source_until_it_is_done() -> None:
    write = scenario()
    write.prefill()
    down = write.copy_down(0, gate=Gate.LAYER)
    assert (down.source, down.target) == (Place(instance=0, tier=0), Place(instance=0, tier=1))
    assert (down.source_ids, down.target_ids, down.after) == ((0, 1), (0, 1), (0,))
    up = write.copy_up(0)
    # GPU blocks 0 and 1 hold the prompt; the copy goes to the next two.
    assert (up.source_ids, up.target_ids, up.after) == ((0, 1), (2, 3), (1,))
    write.settle(answer(0))
    write.settle(answer(1, Outcome.FAILED))
    assert write.copy_up(0).after == (1,)
    write.settle(answer(2))
    reread = write.reread(0)
    # The last of four tokens, from where the copy up has put them.
    assert reread.prefill == (Slice(0, 0, 3, 1, (4, 5), writes=False),)
    assert reread.after == (3,)


def test_a_predecessor_is_named_once() -> None:
    write = scenario()
    write.prefill()
    assert write.copy_down(0, after=(0,)).after == (0,)


def test_the_batch_is_told_as_a_difference() -> None:
    write = scenario()
    for _ in range(2):
        write.settle(answer(write.prefill().op_id))
    first = write.decode(3, 0)
    # 4 tokens of prompt and 3 more need 4 blocks: 0 and 1 of the prompt, then 4 and 5.
    assert first.joined == (Member(0, 0, 4, (0, 1, 4, 5)),)
    assert (first.num_decodes, first.context_tokens) == (1, 5)
    second = write.decode(2, 0, 1)
    # 7 tokens and 2 more need a fifth block, 6; the other request joins with 4 tokens and 2 more.
    assert second.grown == ((0, (6,)),)
    assert second.joined == (Member(1, 0, 4, (2, 3, 7)),)
    assert (second.num_decodes, second.context_tokens) == (2, 8 + 5)
    assert second.after == (2,)  # which writes the tokens that are read
    third = write.prefill(decoding=(1,))
    assert (third.left, third.joined, third.num_decodes) == ((0,), (), 1)
    assert third.context_tokens == 7


def test_a_run_that_was_cut_short_goes_on_where_it_ended() -> None:
    write = scenario()
    write.settle(answer(write.prefill().op_id))
    write.decode(9, 0)
    write.settle(answer(1, steps_done=2))
    # 4 + 2 tokens are there; the next attends to them and to itself.
    assert write.decode(1, 0).context_tokens == 7


def test_a_run_goes_on_behind_one_that_was_cancelled_but_waits_for_one_that_failed() -> None:
    write = scenario()
    write.settle(answer(write.prefill().op_id))
    write.settle(answer(write.decode(2, 0).op_id, Outcome.CANCELLED))
    going_on = write.decode(2, 0)
    assert (going_on.after, going_on.context_tokens) == ((), 5)
    write.settle(answer(going_on.op_id, Outcome.FAILED))
    assert write.decode(2, 0).after == (2,)


def test_what_was_never_written_cannot_be_read() -> None:
    with pytest.raises(MisuseError, match="the prompt of request 0 to tier 0 of instance 0"):
        scenario().copy_down(0)


def test_a_scenario_has_as_many_requests_and_blocks_as_its_specification() -> None:
    write = scenario()
    for _ in range(96):
        write.prefill()
    with pytest.raises(MisuseError, match="96 requests and no more"):
        write.prefill()
    for _ in range(384):  # of two blocks each
        write.copy_down(0)
    with pytest.raises(MisuseError, match="more than the 768 blocks of tier 1"):
        write.copy_down(0)
