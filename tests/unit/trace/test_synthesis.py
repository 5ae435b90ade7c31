from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.errors import ConfigError
from kvsim.identity import has_unique_prefixes
from kvsim.trace import write
from kvsim.trace.synthesis import ChatConfig, synthesize_chat
from kvsim.types import NEVER, PartialRule

SAMPLE = Path(__file__).parents[3] / "traces" / "chat.jsonl"


def test_the_sample_is_made_again_byte_for_byte(tmp_path: Path) -> None:
    write(synthesize_chat(seed=1), tmp_path / "chat.jsonl")
    assert (tmp_path / "chat.jsonl").read_bytes() == SAMPLE.read_bytes()


def test_a_turn_extends_the_path_of_the_turn_before() -> None:
    trace = synthesize_chat(ChatConfig(num_requests=300), seed=3)
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


def test_ids_are_dense_in_the_order_of_their_first_use() -> None:
    trace = synthesize_chat(ChatConfig(num_requests=200), seed=4)
    seen = list(dict.fromkeys(key for request in trace.requests for key in request.block_keys))
    assert seen == list(range(len(seen)))


def test_another_seed_is_another_trace() -> None:
    config = ChatConfig(num_requests=20)
    assert synthesize_chat(config, seed=1) == synthesize_chat(config, seed=1)
    assert synthesize_chat(config, seed=1) != synthesize_chat(config, seed=2)


def test_sessions_of_one_system_prompt_share_its_blocks_only() -> None:
    config = ChatConfig(num_requests=50, num_system_prompts=1, mean_turns=1)
    trace = synthesize_chat(config, seed=1)
    shared = set(trace.requests[0].block_keys)
    for request in trace.requests[1:]:
        shared &= set(request.block_keys)
    # every request is a session of its own, and only its system prompt is known to others
    assert len({request.session_id for request in trace.requests}) == 50
    assert shared
    assert trace.num_unique_blocks == trace.num_references - 49 * len(shared)
    assert NEVER not in shared


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_requests": 0}, "num_requests must be an integer of at least 1, not 0"),
        ({"block_size": 1.5}, "block_size must be an integer of at least 1, not 1.5"),
        ({"mean_turns": 0.5}, "mean_turns must be a number of at least 1, not 0.5"),
        ({"mean_turns": float("nan")}, "mean_turns must be a number of at least 1, not nan"),
        ({"document_percent": 101}, "document_percent must be at most 100, not 101"),
        ({"min_think_ms": 40_000}, "must be at most mean_think_ms"),
    ],
)
def test_an_impossible_configuration_is_refused(change: dict[str, int], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        ChatConfig(**change)
