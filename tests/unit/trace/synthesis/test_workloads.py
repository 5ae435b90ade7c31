"""What holds for every workload, and what each is made for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import ConfigError
from kvsim.hitrate.paths import find_pieces
from kvsim.trace import synthesize
from kvsim.trace.synthesis import Agents, Chat, Rag, SystemPrompts

if TYPE_CHECKING:
    from kvsim.trace import Trace
    from kvsim.trace.synthesis import Workload

TOKENS = st.integers(1, 300)
MS = st.integers(0, 5_000)
MEANS = st.floats(1, 6)
PERCENT = st.floats(0, 100)

CHATS = st.builds(
    Chat, num_system_prompts=st.integers(1, 5), mean_system_tokens=TOKENS,
    mean_message_tokens=TOKENS, mean_answer_tokens=TOKENS, mean_document_tokens=TOKENS,
    document_percent=st.integers(0, 100), mean_turns=MEANS, mean_think_ms=st.just(5_000),
    min_think_ms=MS, answer_token_ms=st.integers(0, 50),
)  # fmt: skip
SYSTEM_PROMPTS = st.builds(
    SystemPrompts, num_system_prompts=st.integers(1, 50), exponent=st.floats(0, 5),
    mean_system_tokens=TOKENS, mean_message_tokens=TOKENS, mean_answer_tokens=TOKENS,
)  # fmt: skip
RAGS = st.builds(
    Rag, num_passages=st.integers(10, 50), exponent=st.floats(0, 10), passages=st.integers(1, 5),
    sorted_percent=PERCENT, mean_passage_tokens=TOKENS, system_tokens=TOKENS,
    mean_question_tokens=TOKENS, mean_answer_tokens=TOKENS, mean_turns=MEANS, same_percent=PERCENT,
    mean_think_ms=MS, answer_token_ms=st.integers(0, 50),
)  # fmt: skip
AGENTS = st.builds(
    Agents, num_kinds=st.integers(1, 4), mean_tools_tokens=TOKENS, mean_task_tokens=TOKENS,
    mean_result_tokens=TOKENS, mean_answer_tokens=TOKENS, mean_summary_tokens=TOKENS,
    mean_steps=MEANS, subagent_percent=PERCENT, mean_subagents=MEANS, mean_tool_ms=MS,
    answer_token_ms=st.integers(0, 50), context_tokens=st.integers(1, 2_000),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    workload=st.one_of(CHATS, SYSTEM_PROMPTS, RAGS, AGENTS),
    num_requests=st.integers(1, 40),
    block_size=st.sampled_from([1, 16, 64]),
    seed=st.integers(0, 1_000),
)
def test_any_parameters_give_a_valid_trace(
    workload: Workload, num_requests: int, block_size: int, seed: int
) -> None:
    trace = synthesize(workload, num_requests=num_requests, seed=seed, block_size=block_size)
    # `Trace` has checked order, the first arrival, and lengths against blocks
    assert trace.num_requests == num_requests
    assert all(request.num_output_tokens >= 1 for request in trace.requests)
    seen = list(dict.fromkeys(key for each in trace.requests for key in each.block_keys))
    assert seen == list(range(len(seen)))  # dense, in the order of their first use
    if seen:
        find_pieces(trace)  # raises unless keys stand for their whole prefix
    assert trace == synthesize(
        workload, num_requests=num_requests, seed=seed, block_size=block_size
    )


def test_single_requests_share_whole_system_prompts_only() -> None:
    model = SystemPrompts(num_system_prompts=3, mean_system_tokens=500)
    trace = synthesize(model, num_requests=100, block_size=1)
    known = find_pieces(trace).known()
    # with blocks of one token: what is known of a prompt is a whole system prompt, or nothing
    assert len(set(known)) == 4
    assert known.count(0) == 3


def rag(**changes: float) -> Trace:
    numbers = {"num_passages": 30, "passages": 2, "mean_turns": 1.0} | changes
    return synthesize(Rag(**numbers), num_requests=400, block_size=1)  # type: ignore[arg-type]


def test_sorted_passages_are_shared_more() -> None:
    drawn, ordered = rag(), rag(sorted_percent=100)

    # 30 passages make 870 ordered pairs and half as many sorted ones
    def behind_the_system_prompt(trace: Trace) -> int:
        return sum(max(0, known - 500) for known in find_pieces(trace).known())

    assert behind_the_system_prompt(ordered) > 1.02 * behind_the_system_prompt(drawn)


def test_a_follow_up_that_finds_other_passages_loses_what_was_behind_them() -> None:
    def lost(trace: Trace) -> int:
        ends: dict[str | None, int] = {}
        count = 0
        for request in trace.requests:
            before = ends.get(request.session_id)
            count += before is not None and before not in request.block_keys
            ends[request.session_id] = request.block_keys[-1]  # type: ignore[assignment]
        return count

    assert lost(rag(mean_turns=3, same_percent=100)) == 0
    assert lost(rag(mean_turns=3, same_percent=0)) > 100


def agents(**changes: float) -> Trace:
    return synthesize(Agents(**changes), num_requests=300, seed=1)  # type: ignore[arg-type]


def test_sub_agents_have_sessions_of_their_own_and_share_the_tools_of_their_kind() -> None:
    trace = agents(subagent_percent=50, num_kinds=1)
    subs = [each for each in trace.requests if each.session_id and "." in each.session_id]
    mains = [each for each in trace.requests if each.session_id and "." not in each.session_id]
    assert len(subs) > 50
    assert len({each.block_keys[0] for each in subs}) == 1
    assert len({each.block_keys[0] for each in mains}) == 1
    assert subs[0].block_keys[0] != mains[0].block_keys[0]


def test_a_parent_waits_for_its_sub_agents() -> None:
    trace = agents(subagent_percent=50)
    begun: dict[str, int] = {}  # session -> its requests so far, when a sub-agent last began
    count: dict[str, int] = {}
    num_checked = 0
    for request in trace.requests:
        assert request.session_id is not None
        count[request.session_id] = count.get(request.session_id, 0) + 1
        parent = request.session_id.rpartition(".")[0]
        if parent:
            before = begun.setdefault(request.session_id, count[parent])
            assert before == count[parent]  # the parent has sent nothing since
            num_checked += 1
    assert num_checked > 50


def test_a_prompt_beyond_the_context_is_summarised_behind_the_same_tools() -> None:
    trace = agents(
        num_kinds=1,
        mean_steps=50.0,
        context_tokens=40_000,
        subagent_percent=0,
        mean_tools_tokens=1_000,
    )
    lengths: dict[str | None, int] = {}
    num_shrunk = 0
    for request in trace.requests:
        num_shrunk += request.num_input_tokens < lengths.get(request.session_id, 0)
        lengths[request.session_id] = request.num_input_tokens
    assert num_shrunk >= 3
    assert max(each.num_input_tokens for each in trace.requests) <= 40_000
    assert len({each.block_keys[0] for each in trace.requests}) == 1


@pytest.mark.parametrize(
    ("kind", "change", "problem"),
    [
        (Rag, {"passages": 501}, "passages of rag must .* at most 500, not 501"),
        (Rag, {"exponent": -1.0}, "exponent of rag must be a number of at least 0"),
        (Rag, {"sorted_percent": 101}, "sorted_percent of rag must .* at most 100"),
        (Agents, {"mean_steps": 0.5}, "mean_steps of agents must be a number of at least 1"),
        (Agents, {"num_kinds": 0}, "num_kinds of agents must be an integer of at least 1"),
        (SystemPrompts, {"exponent": 11}, "exponent of system-prompts must .* at most 10"),
    ],
)
def test_an_impossible_workload_is_refused(
    kind: type, change: dict[str, float], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        kind(**change)
