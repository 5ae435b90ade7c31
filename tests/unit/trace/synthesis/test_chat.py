from __future__ import annotations

import pytest

from kvsim.errors import ConfigError
from kvsim.identity import has_unique_prefixes
from kvsim.trace import synthesize
from kvsim.trace.synthesis import Chat
from kvsim.types import PartialRule


def test_a_turn_extends_the_path_of_the_turn_before() -> None:
    trace = synthesize("chat", num_requests=300, seed=3)
    paths: dict[str | None, tuple[object, ...]] = {}
    lengths: dict[str | None, int] = {}
    num_later_turns = 0
    for request in trace.requests:
        session = request.session_id
        before = paths.get(session, ())
        assert tuple(request.block_keys[: len(before)]) == before
        assert request.num_input_tokens > lengths.get(session, 0)  # a new message at least
        num_later_turns += bool(before)
        paths[session] = tuple(request.block_keys)
        lengths[session] = request.num_input_tokens + request.num_output_tokens
    assert num_later_turns > 100
    assert has_unique_prefixes([request.block_keys for request in trace.requests])
    assert trace.partial is PartialRule.NEVER


def test_sessions_of_one_system_prompt_share_its_blocks_only() -> None:
    model = Chat(num_system_prompts=1, mean_turns=1.0)
    trace = synthesize(model, num_requests=50, seed=1)
    shared = set(trace.requests[0].block_keys)
    for request in trace.requests[1:]:
        shared &= set(request.block_keys)
    # every request is a session of its own, and only its system prompt is known to others
    assert len({request.session_id for request in trace.requests}) == 50
    assert shared
    assert trace.num_unique_blocks == trace.num_references - 49 * len(shared)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_system_prompts": 0}, "num_system_prompts of chat must be an integer of at least 1"),
        ({"mean_answer_tokens": 1.5}, "mean_answer_tokens of chat must be an integer"),
        ({"mean_turns": 0.5}, "mean_turns of chat must be a number of at least 1"),
        ({"mean_turns": float("nan")}, "mean_turns of chat must be a number"),
        ({"document_percent": 101}, "document_percent of chat must .* at most 100, not 101"),
        ({"min_think_ms": 40_000}, r"must be at most mean_think_ms \(30000\), not 40000"),
    ],
)
def test_an_impossible_chat_is_refused(change: dict[str, int], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Chat(**change)
