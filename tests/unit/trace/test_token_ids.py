from __future__ import annotations

from typing import TYPE_CHECKING

import kvsim
from kvsim.trace import load
from kvsim.types import PartialRule
from tests.unit.trace.files import json_lines, problem_of, saved

if TYPE_CHECKING:
    from pathlib import Path

SYSTEM = list(range(1000, 1010))


def row(tokens: list[int], **more: object) -> dict[str, object]:
    return {"prompt_token_ids": tokens, **more}


def test_prompts_share_what_a_prefix_cache_would_share(tmp_path: Path) -> None:
    rows = [
        row([*SYSTEM, 7, 7], arrival_time=1700000000.5, output_token_ids=[1, 2, 3]),
        row([*SYSTEM, 8, 8, 8], arrival_time=1700000001.75, num_output_tokens=4, priority=2),
        row(SYSTEM, arrival_time=1700000002.5, session_id=5),
    ]
    trace = load(saved(tmp_path, json_lines(*rows)), block_size=4)
    assert (trace.format, trace.block_size, trace.partial) == ("token-ids", 4, PartialRule.NEVER)
    # 10 common tokens are 2 blocks of 4; the third of the first ends with 7 7, of the second 8 8
    assert [r.block_keys for r in trace.requests] == [(0, 1, 2), (0, 1, 3), (0, 1)]
    assert [r.arrived_at for r in trace.requests] == [0, 1_250_000_000, 2_000_000_000]
    assert [r.num_output_tokens for r in trace.requests] == [3, 4, 1]
    assert [r.priority for r in trace.requests] == [0, 2, 0]
    assert [r.session_id for r in trace.requests] == [None, None, "5"]
    hits = kvsim.replay(trace, gpu_blocks=100, instant=True).hits["block"]
    assert (hits["hits"], hits["total"]) == (4, 8)


def test_what_changes_the_kv_separates_equal_tokens(tmp_path: Path) -> None:
    image = {"first_token": 4, "num_tokens": 4}
    rows = [
        row(SYSTEM),
        row(SYSTEM, cache_salt="tenant"),
        row(SYSTEM, lora_name="tenant"),
        row(SYSTEM, weight_version="2"),
        row(SYSTEM, media=[{"media_id": "cat", **image}]),
        row(SYSTEM, media=[{"media_id": "dog", **image}]),
        row(SYSTEM, cache_salt="", lora_name=None, media=[]),
    ]
    trace = load(saved(tmp_path, json_lines(*rows)), block_size=4)
    paths = [r.block_keys for r in trace.requests]
    # the images are in the second block: the first is that of the plain prompt
    assert paths == [(0, 1), (2, 3), (4, 5), (6, 7), (0, 8), (0, 9), (0, 1)]


def test_times_have_a_unit_in_their_name(tmp_path: Path) -> None:
    rows = [row([1], timestamp_ms=1000), row([1], timestamp_ms=3500)]
    trace = load(saved(tmp_path, json_lines(*rows)))
    assert [r.arrived_at for r in trace.requests] == [0, 2_500_000_000]
    problem = problem_of(saved(tmp_path, json_lines(row([1], timestamp=5))))
    assert problem == (
        ":1: timestamp has no unit: call it arrival_time if it is in seconds, timestamp_ms if it is"
        " in milliseconds"
    )


def test_without_times_a_model_makes_them_and_a_note_says_so(tmp_path: Path) -> None:
    path = saved(tmp_path, json_lines(row([1]), row([2])))
    trace = load(path, arrivals="poisson:gap_s=5,seed=1")
    assert trace.repairs[0] == (
        "no times in the file: made by the arrival model"
        " poisson:gap_s=5.0,think_s=30.0,token_ms=20.0,seed=1"
    )
    assert trace.requests[1].arrived_at > 0
    mixed = saved(tmp_path, json_lines(row([1]), row([2], timestamp_ms=5)))
    assert problem_of(mixed) == ":2: all rows must have an arrival_time or timestamp_ms, or none"


def test_a_bad_row_is_one_line(tmp_path: Path) -> None:
    for change, problem in (
        ({"prompt_token_ids": []}, ":2: prompt_token_ids must not be empty"),
        ({"prompt_token_ids": [1.5]}, ":2: each of prompt_token_ids must be a whole number"),
        ({"output_token_ids": 3}, ":2: output_token_ids must be a list of whole numbers, not 3"),
        ({"cache_salt": 5}, ":2: cache_salt must be text, not 5"),
        ({"media": [1]}, ":2: media must be a list of objects, not a list of 1"),
        ({"media": [{}]}, ":2: field 'media_id' is missing; fields seen: none"),
        (
            {"media": [{"media_id": "", "first_token": 0, "num_tokens": 1}]},
            ":2: media_id must be a string that is not empty",
        ),
        ({"priority": "high"}, ":2: priority must be a whole number up to 2**53, not 'high'"),
    ):
        path = saved(tmp_path, json_lines(row([1]), row([1]) | change))
        assert problem_of(path).startswith(problem)
