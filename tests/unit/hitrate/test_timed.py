"""What prompt blocks meet in a run: cases worked out by hand, and that the classes are a partition.

A block is four tokens, and a letter stands for a block and its whole prefix.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

import kvsim
from kvsim.errors import ConfigError, UnknownNameError, UserError
from kvsim.hitrate import CLASSES, attribute_misses
from tests.unit.stories import back_from_below, three_prompts, trace_of

if TYPE_CHECKING:
    from kvsim.hitrate import TimedAttribution
    from kvsim.trace import Trace


def met(found: TimedAttribution) -> dict[str, int]:
    return {name: count for name, count in found.blocks.items() if count}


def instant(trace: Trace, *, gpu_blocks: int, policy: str = "lru") -> TimedAttribution:
    result = kvsim.replay(trace, gpu_blocks=gpu_blocks, policy=policy, instant=True, events=True)
    return attribute_misses(result)


def test_new_blocks_are_cold_and_a_new_last_block_that_is_not_full_is_a_tail() -> None:
    # abc of 10 tokens: a, b new, c a tail of 2. abc: all found. ad of 6: a found, d a tail of 2.
    found = instant(three_prompts(), gpu_blocks=5)
    assert met(found) == {"hit_gpu": 4, "cold": 2, "partial_tail": 2}
    # Tokens: hits 10 + 4, cold 4 + 4, tails 2 + 2: the 26 of the trace.
    tokens = {name: count for name, count in found.tokens.items() if count}
    assert tokens == {"hit_gpu": 14, "cold": 8, "partial_tail": 4}


def test_what_the_optimum_would_have_kept_is_the_policys_and_the_rest_the_capacitys() -> None:
    # Three blocks. LRU: d takes c's place, e takes b's, and of abc only a is found.
    # The optimum: d takes c's place, e takes d's, since d never comes again: a and b are found.
    trace = trace_of(("abc", 12), ("d", 4), ("e", 4), ("abc", 12))
    found = instant(trace, gpu_blocks=3)
    assert met(found) == {"hit_gpu": 1, "policy": 1, "capacity": 1, "cold": 5}
    pieces = [(p.name, p.first_block, p.num_blocks) for p in found.pieces[-3:]]
    assert pieces == [("hit_gpu", 0, 1), ("policy", 1, 1), ("capacity", 2, 1)]
    # With the four blocks that `capacity_blocks` grants, it would have found c as well.
    result = kvsim.replay(trace, gpu_blocks=3, instant=True, events=True)
    assert met(attribute_misses(result, capacity_blocks=5))["policy"] == 2


def test_hits_below_are_told_from_those_above() -> None:
    result = kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=3, events=True)
    assert met(attribute_misses(result)) == {"hit_cpu": 3, "cold": 6}


def test_a_block_that_is_being_computed_is_joined() -> None:
    trace = trace_of(("abc", 12), ("abc", 12), gap_ns=0)
    result = kvsim.replay(trace, gpu_blocks=8, events=True)
    assert met(attribute_misses(result)) == {"in_flight": 3, "cold": 3}


def test_a_block_that_two_compute_at_once_is_a_duplicate_for_the_second() -> None:
    # abc is below when two requests for abcg come at once. Both wait for the copy of abc, the
    # second joins it, and then both compute g, which was in nobody's hands when they came in.
    trace = trace_of(("abc", 12), ("ABCDEFGH", 32), ("abcg", 16), ("abcg", 16))
    *others, last = trace.requests
    twins = replace(trace, requests=(*others, replace(last, arrived_at=others[2].arrived_at)))
    result = kvsim.replay(
        twins, gpu_blocks=8, cpu_blocks=8, swap_in="wait", swap_batch_blocks=8, events=True
    )
    assert result.num_duplicate_blocks == 1
    # Cold: abc, the eight, and g for the first of the twins.
    assert met(attribute_misses(result)) == {
        "hit_cpu": 3, "in_flight": 3, "duplicate": 1, "cold": 12,
    }  # fmt: skip


def test_what_was_found_below_and_did_not_come_up_is_a_failed_reload() -> None:
    # With this seed the copy of abc back to the GPU fails; the second attempt computes it.
    result = kvsim.replay(
        back_from_below(), gpu_blocks=3, cpu_blocks=3, fail_rate=0.04, seed=7, events=True
    )
    assert [record.num_attempts for record in result.records] == [1, 1, 2]
    found = attribute_misses(result)
    assert met(found) == {"reload_failed": 3, "cold": 6}
    assert found.num_again == {"preempted": 0, "restarted": 3}
    # By the definition of a hit it is one: found at the first admission.
    assert result.hits["block"]["hits"] == 3


def test_blocks_that_a_preempted_request_computes_again_are_counted_apart() -> None:
    # Two prompts of two blocks in five; each makes 12 tokens, so both grow to five: one must go.
    trace = trace_of(("ab", 8), ("xy", 8), gap_ns=0)
    longer = tuple(replace(each, num_output_tokens=12) for each in trace.requests)
    result = kvsim.replay(
        replace(trace, requests=longer), gpu_blocks=5, decode_reserve_blocks=0, events=True
    )
    assert result.num_preemptions == 1
    found = attribute_misses(result)
    assert met(found) == {"cold": 4}
    # Its prompt had two blocks and it had filled at most one of output.
    assert 1 <= found.num_again["preempted"] <= 3
    assert found.num_again["restarted"] == 0


def test_requests_that_never_get_in_have_a_class_of_their_own() -> None:
    trace = trace_of(("ab", 8), ("cdefg", 18), ("ab", 8))
    found = instant(trace, gpu_blocks=3)
    assert met(found) == {"hit_gpu": 2, "cold": 2, "not_admitted": 5}
    assert found.tokens["not_admitted"] == 18


def test_the_warm_up_is_left_out_of_the_counts_and_marked_in_the_frame() -> None:
    result = kvsim.replay(three_prompts(), gpu_blocks=5, instant=True, events=True, warmup=0.34)
    found = attribute_misses(result)  # 0.34 of 3 requests: the first
    assert met(found) == {"hit_gpu": 4, "partial_tail": 1}
    assert found.frame.groupby("is_warmup")["num_blocks"].sum().to_dict() == {False: 5, True: 3}


letters = st.text("ab", min_size=1, max_size=5)
prompts = st.lists(st.tuples(letters, st.integers(1, 4)), min_size=1, max_size=12)


def chained(asked: list[tuple[str, int]], *, gap_ns: int) -> Trace:
    """Return prompts whose keys name the whole prefix, and of a last block its tokens too."""
    trace = trace_of(*((text, 4 * len(text) - 4 + tail) for text, tail in asked), gap_ns=gap_ns)
    requests = []
    for request, (text, tail) in zip(trace.requests, asked, strict=True):
        keys = [text[: end + 1] for end in range(len(text))]
        if tail < 4:
            keys[-1] = f"{text}:{tail}"
        requests.append(replace(request, block_keys=keys, num_output_tokens=1 + tail * 2))
    return replace(trace, requests=tuple(requests))


@given(
    asked=prompts,
    gap_ns=st.sampled_from([0, 10**6, 10**9]),
    gpu_blocks=st.integers(3, 12),
    cpu_blocks=st.integers(0, 12),
    policy=st.sampled_from(["lru", "fifo", "belady"]),
    fail_rate=st.sampled_from([0.0, 0.02]),
)
def test_every_block_is_in_exactly_one_class(
    asked: list[tuple[str, int]],
    gap_ns: int,
    gpu_blocks: int,
    cpu_blocks: int,
    policy: str,
    fail_rate: float,
) -> None:
    trace = chained([("a", 4), *asked], gap_ns=gap_ns)
    result = kvsim.replay(
        trace, policy=policy, gpu_blocks=gpu_blocks, cpu_blocks=cpu_blocks, fail_rate=fail_rate,
        events=True,
    )  # fmt: skip
    found = attribute_misses(result)
    for request in trace.requests:
        number = request.request_id
        pieces = [piece for piece in found.pieces if piece.request.request_id == number]
        covered = [piece.first_block + i for piece in pieces for i in range(piece.num_blocks)]
        assert covered == list(range(len(request.block_keys)))
        assert sum(piece.num_tokens for piece in pieces) == request.num_input_tokens
    # New blocks, counted without the lab: keys of those who got in, at their first appearance.
    admitted = [r.request for r in result.records if r.admitted_at is not None]
    num_new = len({key for request in admitted for key in request.block_keys})
    blocks = found.blocks
    # What is new is cold, a tail, or a duplicate of what is computed at the same time.
    assert blocks["cold"] + blocks["partial_tail"] <= num_new
    assert num_new <= blocks["cold"] + blocks["partial_tail"] + blocks["duplicate"]
    in_flight = sum(tier["in_flight_hit_blocks"] for tier in result.tiers.values())
    assert blocks["in_flight"] <= in_flight <= blocks["in_flight"] + blocks["reload_failed"]


@given(asked=prompts, gpu_blocks=st.integers(5, 12))
def test_the_clairvoyant_policy_leaves_nothing_to_a_better_one(
    asked: list[tuple[str, int]], gpu_blocks: int
) -> None:
    found = instant(chained(asked, gap_ns=1), gpu_blocks=gpu_blocks, policy="belady")
    assert found.blocks["policy"] == 0


def test_events_must_have_been_kept() -> None:
    with pytest.raises(UserError, match="events=True"):
        attribute_misses(kvsim.replay(three_prompts(), gpu_blocks=5))


def test_a_capacity_must_be_a_count_of_blocks() -> None:
    result = kvsim.replay(three_prompts(), gpu_blocks=5, events=True)
    with pytest.raises(ConfigError, match="capacity_blocks must be a whole number of blocks"):
        attribute_misses(result, capacity_blocks=0)


@pytest.mark.parametrize("by", ["time", "depth"])
def test_the_plot_stacks_all_classes_that_occur_up_to_all_blocks(by: str) -> None:
    ax = Figure().add_subplot()
    found = instant(three_prompts(), gpu_blocks=5)
    assert found.plot(by=by, ax=ax) is ax
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["hit gpu", "cold", "partial tail"]
    top = ax.patches[-1].get_data().values  # type: ignore[attr-defined]  # of the last stairs
    assert top == pytest.approx([1.0] * len(top))


def test_a_plot_over_something_else_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="depth, time"):
        instant(three_prompts(), gpu_blocks=5).plot(by="hour")


def test_a_notebook_shows_every_class_that_occurs_and_what_it_means() -> None:
    shown = instant(three_prompts(), gpu_blocks=5)._repr_html_()
    assert "partial tail" in shown
    assert all(text.split(",")[0] in shown for text in CLASSES.values())
