from __future__ import annotations

import json

import pytest

import kvsim
from kvsim.capacity import Sizing, Worth
from kvsim.capacity.answer import HEAD, POINT_COLUMNS
from kvsim.errors import ConfigError, UnknownNameError, UserError
from tests.unit.stories import three_prompts, trace_of

# llama-3.1-8b: 131,072 bytes a token (tests/unit/test_sizing.py), 4 tokens a block: 2,048 blocks
# a GiB. The LRU curve of the three prompts hits 8, 12 and 14 of 26 tokens at 1, 2 and 3 blocks:
# abc lies at 1, 2, 3 of the stack when it comes again, and a at 1 for the third request.
BLOCK_GIB = 1 / 2048


def sized(target: float, gpu_blocks: int = 1, definition: str = "prefix_token") -> Sizing:
    return kvsim.size(
        three_prompts(), target_hit=target, gpu_blocks=gpu_blocks, definition=definition
    )


def test_the_least_capacity_that_reaches_the_target_is_split_between_the_tiers() -> None:
    found = sized(0.4)  # 10.4 tokens: 2 blocks have 12
    alone, both = found.answers
    assert (alone.gpu_blocks, alone.cpu_blocks, alone.gpu_gib) == (2, 0, 2 * BLOCK_GIB)
    assert (both.gpu_blocks, both.cpu_blocks, both.cpu_gib) == (1, 1, BLOCK_GIB)
    assert (both.gpu_rate, both.cpu_rate, both.rate) == (8 / 26, 4 / 26, 12 / 26)
    assert found.verdict.startswith("2 blocks, 0.00098 GiB, on the GPU alone; or the 1 it has")


def test_one_more_gib_adds_the_rest_of_the_curve_and_moves_what_the_cpu_hits() -> None:
    # 2,048 blocks reach to the end: of 2 blocks 2 tokens are left, and the 4 on the CPU come up.
    alone, both = sized(0.4).answers
    assert alone.new_points_per_gib == both.new_points_per_gib == pytest.approx(100 * 2 / 26)
    assert alone.moved_points_per_gib == 0
    assert both.moved_points_per_gib == pytest.approx(100 * 4 / 26)
    assert sized(0.4).worth(1, 1, 1) == Worth(num_blocks=1, new_hits=2, moved_hits=4)
    assert sized(0.4).worth(1, 2, 1) == Worth(num_blocks=1, new_hits=0, moved_hits=4)


def test_knees_are_the_least_capacities_with_a_share_of_all_hits() -> None:
    # Of 14 tokens 50 % are 7, 80 % 11.2, 90 % 12.6. Above the chord: 8/14 - 1/3 = 0.24 at 1,
    # 12/14 - 2/3 = 0.19 at 2, 0 at 3.
    found = [(point.name, point.gpu_blocks) for point in sized(0.4).knees]
    assert found == [("50 %", 1), ("80 %", 2), ("90 %", 3), ("95 %", 3), ("99 %", 3), ("knee", 1)]


def test_a_target_that_no_size_reaches_is_said_with_what_is_possible() -> None:
    found = sized(0.54)
    assert not found.is_reachable
    assert found.answers == ()
    assert found.verdict == "no size reaches 0.5400: the infinite cache hits 0.5385"
    assert found.point("GPU fixed") is not None


def test_the_rate_of_the_infinite_cache_can_be_asked_for() -> None:
    alone = sized(14 / 26).point("GPU alone")
    assert alone is not None
    assert alone.gpu_blocks == 3


def test_a_target_that_is_not_exact_in_binary_is_reached_by_its_fraction() -> None:
    # The float 0.1 is a little more than one hit of ten; a is second in the stack, behind i.
    trace = trace_of(("abcdefgh", 32), ("i", 4), ("a", 4))
    found = kvsim.size(trace, target_hit=0.1, definition="block", gpu_blocks=1)
    assert [point.gpu_blocks for point in found.answers] == [2, 1]


def test_a_target_of_nothing_needs_no_block() -> None:
    found = sized(0.0)
    assert found.answers[0].gpu_blocks == 0
    assert found.verdict.endswith("it is reached with less than one block")


def test_a_fixed_tier_that_is_large_enough_needs_no_cpu() -> None:
    found = sized(0.4, gpu_blocks=5)
    assert (found.answers[1].gpu_blocks, found.answers[1].cpu_blocks) == (5, 0)
    assert found.verdict.endswith("the GPU tier has 5, so it needs no CPU tier")


def test_each_definition_has_its_own_answer() -> None:
    # 40 % of 8 blocks are 3.2: 4 hits at 3 blocks. Usable are 8 + 4 of 26 tokens: c never is.
    assert sized(0.4, definition="block").answers[0].gpu_blocks == 3
    assert sized(0.4, definition="prefix_token_usable").answers[0].gpu_blocks == 2


def test_the_fixed_tier_is_by_default_what_the_hardware_leaves() -> None:
    found = kvsim.size(three_prompts())
    assert found.fixed.gpu_blocks == kvsim.replay(three_prompts()).config.gpu_blocks
    assert found.fixed_by == "what h200-8x leaves beside the weights in 90 % of its memory"
    assert kvsim.size(three_prompts(), gpu_gib=2).fixed.gpu_blocks == 4096


def test_room_for_running_requests_is_told() -> None:
    # 10 tokens and one of output, whose KV nobody needs: 3 blocks. 11 + 11 + 7 tokens in 2 s.
    room = sized(0.4).room
    assert (room.largest_blocks, room.largest_gib) == (3, 3 * BLOCK_GIB)
    assert room.tokens_per_second == 14.5
    assert room.gib_per_second == pytest.approx(14.5 / 4 * BLOCK_GIB)
    at_once = kvsim.size(trace_of(("a", 4), ("a", 4), gap_ns=0))
    assert at_once.room.tokens_per_second is None
    assert "for each second" not in " ".join(at_once.notes())


def test_what_the_machine_cannot_do_is_warned_of() -> None:
    assert sized(0.4, gpu_blocks=3).warnings == ()
    (short,) = sized(0.4, gpu_blocks=2).warnings
    assert short.startswith("the longest prompt has 3 blocks and is refused by a GPU tier of 2")
    (large,) = sized(0.4, gpu_blocks=10**9).warnings
    assert "the GPU tier of 1,000,000,000 blocks is more than the" in large
    too_large = kvsim.size(
        three_prompts(), model="deepseek-v3", hardware="a100-8x", gpu_blocks=3, target_hit=0.4
    )
    assert "leaves no room for a block" in too_large.warnings[0]


def test_a_latent_that_every_rank_keeps_takes_its_bytes_on_each() -> None:
    # 61 * 576 * 2 = 70,272 bytes a token and rank; 4 tokens, 8 ranks.
    found = kvsim.size(three_prompts(), model="deepseek-v3", gpu_blocks=1)
    assert found.block_bytes == 70_272 * 4 * 8
    assert kvsim.size(three_prompts(), model="deepseek-v3", kv_dtype="fp8").block_bytes == (
        70_272 * 4 * 4
    )


def test_nothing_hit_has_no_knees() -> None:
    found = kvsim.size(trace_of(("ab", 8), ("cd", 8)), gpu_blocks=2)
    assert found.knees == ()
    assert found.verdict == "no size reaches 0.3000: the infinite cache hits 0.0000"
    assert found.plot().get_xlabel() == "capacity (blocks)"


def test_the_warm_up_is_left_out() -> None:
    # Of the first three requests one: 10 + 6 tokens are left, and 8 of them hit at 1 block.
    found = kvsim.size(three_prompts(), warmup=0.5, target_hit=0.5, gpu_blocks=1)
    assert found.fixed.rate == 8 / 16
    assert found.answers[0].gpu_blocks == 1


def test_the_result_can_be_read_as_a_frame_json_html_and_a_table() -> None:
    found = sized(0.4)
    assert {name: str(dtype) for name, dtype in found.frame.dtypes.items()} == POINT_COLUMNS
    assert len(found.frame) == len(found.points) == 2 + 1 + 6
    assert found.frame.attrs["block_bytes"] == 2**19
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [each["gpu_blocks"] for each in told["answers"]] == [2, 1]
    assert told["infinite"] == {"hits": 14, "total": 26, "rate": 14 / 26}
    assert told["in_flight"] == "no requests in flight"
    assert found.table_rows()[1][:5] == ("GPU + CPU", "1", "0.00049", "1", "0.00049")
    assert {len(row) for row in found.table_rows()} == {len(HEAD)}
    assert "leave room for the tokens of running requests" in found._repr_html_()


def test_the_plot_shows_the_target_the_answer_and_gib() -> None:
    ax = sized(0.4).plot()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]  # type: ignore[union-attr]
    assert labels[1:3] == ["target 40.00%", "GPU tier 1: 30.77%"]
    assert labels[-1] == "answer 2 blocks"
    (below,) = ax.child_axes
    assert below.get_xlabel() == "GiB (llama-3.1-8b, 16-bit KV, all ranks)"


@pytest.mark.parametrize(
    ("settings", "error", "problem"),
    [
        ({"target_hit": 30}, ConfigError, r"from 0 to 1, not 30; 30 % is 0\.3"),
        ({"target_hit": -0.1}, ConfigError, r"from 0 to 1, not -0\.1$"),
        ({"target_hit": float("nan")}, ConfigError, "from 0 to 1, not nan"),
        ({"target_hit": "0.3"}, ConfigError, "not '0.3'"),
        ({"definition": "tokens"}, UnknownNameError, "unknown definition of the hit rate"),
        ({"model": "llama"}, UnknownNameError, "unknown model 'llama'. Known: deepseek-v3"),
        ({"gpu_blocks": 1, "gpu_gib": 1}, ConfigError, "exclude each other"),
        ({"gpu_gib": 1e-9}, ConfigError, "gpu_gib must hold a block"),
        ({"warmup": 1}, ConfigError, "warmup must be a share"),
        ({"trace": "sample:cat"}, UnknownNameError, "unknown sample trace 'cat'"),
        ({"trace": trace_of()}, UserError, "there is nothing to hit"),
    ],
)
def test_what_cannot_be_sized_is_refused_in_one_line(
    settings: dict[str, object], error: type[UserError], problem: str
) -> None:
    given: dict[str, object] = {"trace": three_prompts()} | settings
    with pytest.raises(error, match=problem):
        kvsim.size(**given)  # type: ignore[arg-type]


def test_a_sample_can_be_named() -> None:
    assert kvsim.size("sample:chat", gpu_blocks=1000).curve.basis.trace == "chat"
