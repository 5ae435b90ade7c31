from __future__ import annotations

import json

import pytest

from kvsim.engines import explain
from kvsim.engines.explanation import STEP_COLUMNS, points, without_partial_blocks
from kvsim.errors import UserError
from kvsim.trace import annotate_next_use
from kvsim.types import PartialRule
from tests.unit.engines.test_replays import STORY
from tests.unit.stories import three_prompts, trace_of


def test_every_engine_is_reached_one_rule_at_a_time() -> None:
    # 13 references, 52 tokens. By block, the runs are 0 0 2 0 3: 5 hits, 20 tokens; of the 8
    # tokens of "ab" only the first block may be used, so 4 + 12 are usable.
    found = explain(trace_of(*STORY), gpu_blocks=6)
    assert (found.ours["hits"], found.ours["total"]) == (5, 13)
    hits = {row.engine.name: [s.figure["hits"] for s in row.steps] for row in found.rows}
    assert hits == {
        "vllm": [5, 5, 5, 5, 20, 16],
        # Runs 0 0 2 0 2, then 0 0 2 0 4; of abcd only three blocks may be used.
        "sglang": [5, 4, 6, 6, 24, 16],
        "lmcache": [5, 4, 4, 4, 16, 16],  # runs 0 0 2 0 2
        "fastdeploy": [5, 5, 5, 5, 20, 20],
    }
    assert found.engine("sglang").pool == {"hits": 6, "total": 13, "rate": 6 / 13}
    assert found.engine("lmcache").reported == {"hits": 16, "total": 52, "rate": 16 / 52}


def test_blocks_that_are_not_full_lose_their_keys() -> None:
    # abc and abc again have two full blocks each, ad one: 3 hits of 5 references. 12 of 26 tokens
    # are in full blocks that hit; all of them are usable, since each prompt has a token after.
    row = explain(three_prompts(), gpu_blocks=100, engines=["vllm"]).engine("vllm")
    figures = [(step.rule, step.figure["hits"], step.figure["total"]) for step in row.steps]
    assert figures == [
        ("kvsim block", 4, 8),
        ("evicts", 4, 8),
        ("tail", 4, 8),
        ("keys", 3, 5),
        ("unit", 12, 26),
        ("last_token", 12, 26),
    ]
    assert row.largest is not None
    assert row.largest.rule == "unit"  # 0.4615 - 0.6; the keys are 0.6 - 0.5


def test_a_trace_without_keys_for_partial_blocks_stays_as_it_is() -> None:
    trace = without_partial_blocks(annotate_next_use(three_prompts()))
    assert [tuple(each.block_keys) for each in trace.requests] == [("a", "b"), ("a", "b"), ("a",)]
    assert trace.partial is PartialRule.NEVER
    found = explain(trace, gpu_blocks=100)
    assert found.ours == {"hits": 3, "total": 5, "rate": 0.6}
    assert [row.steps[3].delta for row in found.rows] == [0.0] * 4


def test_a_trace_of_prompts_shorter_than_a_block_hits_nothing_in_any_engine() -> None:
    found = explain(trace_of(("a", 2), ("a", 2)), gpu_blocks=4)
    assert found.ours["hits"] == 1
    assert {row.reported["hits"] for row in found.rows} == {0}


def test_the_warm_up_is_left_out_of_all_figures() -> None:
    found = explain(three_prompts(), gpu_blocks=100, warmup=0.5)  # the first of three
    assert (found.ours["hits"], found.ours["total"]) == (4, 5)
    assert found.engine("fastdeploy").reported["total"] == 16


def test_the_result_can_be_read_as_a_frame_json_html_and_a_table() -> None:
    found = explain(trace_of(*STORY), gpu_blocks=6, engines=["sglang", "vllm"])
    frame = found.frame
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == STEP_COLUMNS
    assert len(frame) == 2 * 6
    assert frame.attrs["gpu_blocks"] == 6
    assert frame.attrs["in_flight"] == "no requests in flight"
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [each["name"] for each in told["engines"]] == ["sglang", "vllm"]
    assert told["engines"][0]["rules"]["keys"]["inferred"] is True
    assert "<td" in found._repr_html_()
    # evicts: 4/13 - 5/13; tail: 6/13 - 4/13; last token: 16/52 - 24/52. For vLLM: 16/52 - 20/52.
    assert [found.head, *found.table_rows()] == [
        ("", "sglang", "vllm"),
        ("kvsim block", "38.46%", "38.46%"),
        ("evicts", "-7.69", "0"),
        ("tail", "+15.38", "0"),
        ("cache hits", "46.15%", "38.46%"),
        ("keys", "0", "0"),
        ("unit", "0", "0"),
        ("last token", "-15.38", "-7.69"),
        ("would report", "30.77%", "30.77%"),
        ("most by", "tail", "last token"),
    ]


@pytest.mark.parametrize(
    ("delta", "text"), [(0.0, "0"), (0.0127, "+1.27"), (-0.00004, "-0.004"), (-0.5, "-50.00")]
)
def test_a_small_step_is_not_shown_as_none(delta: float, text: str) -> None:
    assert points(delta) == text


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"gpu_blocks": 0}, "gpu_blocks must be a whole number of blocks from 1"),
        ({"gpu_blocks": 4, "warmup": 1}, "warmup must be a share"),
        ({"gpu_blocks": 4, "engines": "vllm"}, "a list of names, such as .*, not 'vllm'"),
        ({"gpu_blocks": 4, "engines": []}, "engines must be a list of names"),
        ({"gpu_blocks": 4, "engines": ["vlm"]}, "Did you mean 'vllm'"),
    ],
)
def test_what_cannot_be_explained_is_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        explain(three_prompts(), **settings)  # type: ignore[arg-type]


def test_a_trace_without_blocks_has_nothing_to_explain() -> None:
    with pytest.raises(UserError, match="there is nothing to explain"):
        explain(trace_of(), gpu_blocks=4)
