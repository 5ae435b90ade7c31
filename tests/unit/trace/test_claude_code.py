from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

from kvsim.trace import load
from kvsim.types import PartialRule
from tests.unit.trace.files import problem_of, saved

if TYPE_CHECKING:
    from pathlib import Path


def request(at: float, num_tokens: int, ids: list[int], **more: object) -> dict[str, object]:
    return {
        "t": at,
        "type": "n",
        "model": "m",
        "in": num_tokens,
        "out": 5,
        "hash_ids": ids,
        "think_time": 1.0,
        **more,
    }


def conversation(*requests: dict[str, object], **more: object) -> str:
    head: dict[str, object] = {
        "id": "c",
        "models": ["m"],
        "block_size": 64,
        "hash_id_scope": "local",
        "tool_tokens": 9,
        "system_tokens": 3,
    }
    return json.dumps({**head, "requests": requests, **more})


def test_only_whole_blocks_have_ids(tmp_path: Path) -> None:
    text = conversation(
        request(0.0, 130, [1, 2]),  # 130 // 64 = 2
        request(1.5, 128, [1, 2]),
        request(3.0, 200, [1, 2, 3, 4]),  # ceil(200 / 64) = 4: the last is not whole
        request(4.0, 300, [1, 2]),  # 300 // 64 = 4, two without an id
    )
    trace = load(saved(tmp_path, text))
    assert (trace.format, trace.block_size, trace.partial) == (
        "claude-code",
        64,
        PartialRule.NEVER,
    )
    assert [r.block_keys for r in trace.requests] == [(0, 1), (0, 1), (0, 1, 2), (0, 1, 3, 4)]
    assert [r.arrived_at for r in trace.requests] == [0, 1_500_000_000, 3 * 10**9, 4 * 10**9]
    assert {r.session_id for r in trace.requests} == {"c"}
    assert trace.repairs == (
        "1 request with fewer ids than full blocks, the others taken as its own, first request 4",
    )


def test_sub_agents_count_from_their_entry_and_are_sessions_of_their_own(tmp_path: Path) -> None:
    inner = {"t": 2.0, "type": "subagent", "requests": [request(0.5, 64, [9])]}
    agent = {"t": 10.0, "type": "subagent", "requests": [request(1.0, 64, [8]), inner]}
    trace = load(saved(tmp_path, conversation(request(0, 64, [1]), agent, request(11.5, 64, [1]))))
    # 10 + 1, and 10 + 2 + 0.5, which is later than the request after: flattening puts it last
    assert [(r.arrived_at / 10**9, r.session_id) for r in trace.requests] == [
        (0.0, "c"),
        (11.0, "c/1"),
        (11.5, "c"),
        (12.5, "c/1/1"),
    ]
    assert trace.num_disordered == 1


def test_ids_of_two_files_are_not_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    saved(folder, conversation(request(0, 64, [1]), id="a"), "1.json")
    saved(folder, gzip.compress(conversation(request(0, 64, [1]), id="b").encode()), "2.json.gz")
    saved(folder, "not a conversation", "notes.txt")
    trace = load(folder, arrivals="poisson:gap_s=0")
    assert [r.block_keys for r in trace.requests] == [(0,), (1,)]
    assert [r.session_id for r in trace.requests] == ["a", "b"]
    assert trace.repairs[0].startswith("2 conversations without a common clock")
    saved(folder, conversation(request(0, 64, [1]), hash_id_scope="global"), "3.json")
    saved(folder, conversation(request(0, 64, [1]), hash_id_scope="global"), "4.json")
    shared = load(folder, arrivals="poisson:gap_s=0")
    assert [r.block_keys for r in shared.requests] == [(0,), (1,), (2,), (2,)]


def test_conversations_start_as_the_seeded_model_says(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    for i in range(3):
        saved(folder, conversation(request(0, 64, [1])), f"{i}.json")
    once, again, other = (
        [r.arrived_at for r in load(folder, arrivals=f"poisson:gap_s=60,seed={seed}").requests]
        for seed in (1, 1, 2)
    )
    assert once == again != other
    assert load(folder).sha256 == load(folder, arrivals="poisson:gap_s=1").sha256


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    without = {k: v for k, v in request(1.0, 64, [1]).items() if k != "out"}
    trace = load(saved(tmp_path, conversation(request(0.0, 64, [1]), without)))
    assert [r.num_output_tokens for r in trace.requests] == [5, 1]
    assert trace.repairs == (
        "1 request without `out`, first request 2",
        "output of 0 tokens taken as 1 in 1 row, first at line 2",
    )


def test_a_bad_file_is_one_line(tmp_path: Path) -> None:
    for text, problem in (
        (conversation(block_size=32), ": block_size is 32 in this file, but an id is read as 64"),
        (conversation(request(0, 10, [1, 2])), ":1: 2 hash_ids do not fit in 10: at 64 tokens"),
        (conversation(request(-1, 10, [])), ":1: t must be a number of seconds from 0"),
        (conversation(request(0, 64, [1]))[:-30], ": not valid JSON: "),
        (conversation(requests=5), ": requests must be a list, not 5"),
        (conversation(), ": there is no request in it"),
    ):
        assert problem_of(saved(tmp_path, text)).startswith(problem)
    nested: dict[str, object] = {"t": 0, "type": "subagent", "requests": []}
    for _ in range(40):
        nested = {"t": 0, "type": "subagent", "requests": [nested]}
    problem = problem_of(saved(tmp_path, conversation(nested)))
    assert "sub-agents nested more than 32 deep" in problem
