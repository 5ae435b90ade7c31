"""Azure's and BurstGPT's tables, and what prompts share in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsim.analysis.trace_info import describe
from kvsim.errors import ConfigError, UnknownNameError, UserError
from kvsim.trace import ZipfSharing, load, write
from tests.unit.trace.files import problem_of, saved

if TYPE_CHECKING:
    from pathlib import Path

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n"
)
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45.25,GPT-4,0,0,0,API log\n"
)


def test_seven_digits_of_a_second_are_read_to_the_last(tmp_path: Path) -> None:
    trace = load(saved(tmp_path, AZURE))
    assert (trace.format, trace.block_size, trace.has_prefixes) == ("azure", 64, False)
    # 04.0319600 - 03.9799600 = 0.052 s
    assert [r.arrived_at for r in trace.requests] == [0, 52_000_000]
    assert [r.num_input_tokens for r in trace.requests] == [4808, 3180]
    assert [r.num_output_tokens for r in trace.requests] == [10, 8]


def test_times_of_2024_have_a_zone(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 23:59:59.999999+00:00,10,1\n"
        "2024-05-11 01:00:00.000001+01:00,10,1\n"  # 2 us later
        "2024-05-11 00:00:01,10,1"
    )
    trace = load(saved(tmp_path, text))
    assert [r.arrived_at for r in trace.requests] == [0, 2_000, 1_000_001_000]


def test_burstgpt_has_seconds_and_failed_answers(tmp_path: Path) -> None:
    trace = load(saved(tmp_path, BURST))
    assert trace.format == "burstgpt"
    assert [r.arrived_at for r in trace.requests] == [0, 40_250_000_000]
    assert [r.num_input_tokens for r in trace.requests] == [472, 1]
    assert trace.repairs[:2] == (
        "prompt of 0 tokens taken as 1 in 1 row, first at line 3",
        "output of 0 tokens taken as 1 in 1 row, first at line 3",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (AZURE + "2023-11-16 18:17:05,5", ":4: 2 fields, but 3 columns; the file seems to be cut"),
        (AZURE + "yesterday,5,5\n", ":4: timestamp must be like 2023-11-16 18:17:03.9799600"),
        (AZURE + "2023-13-16 18:17:05,5,5\n", ":4: timestamp must be like 2023-11-16"),
        (AZURE + "2023-11-16 18:17:05,-5,5\n", ":4: contexttokens must be a whole number from 0"),
        (AZURE + "2023-11-16 18:17:05,5,\u0665\n", ":4: generatedtokens must be a whole number"),
        (AZURE + '2023-11-16 18:17:05,"5,5\n', ":4: not a row of a CSV file"),
        (AZURE + "2023-11-16 18:17:05,9007199254740992,5\n", ":4: contexttokens must be at most"),
        (BURST + "1e3,m,5,5,10,x\n", ":4: timestamp must be a number of seconds from 0"),
        (BURST.split("\n", 1)[0] + "\n", ": there is no request in it"),
    ],
)
def test_a_bad_row_is_one_line(tmp_path: Path, text: str, problem: str) -> None:
    assert problem_of(saved(tmp_path, text)).startswith(problem)


def table(tmp_path: Path, *lengths: tuple[int, int]) -> Path:
    """Make a table of (input, output) tokens, a second apart."""
    rows = [f"2023-11-16 18:17:{i:02},{a},{b}\n" for i, (a, b) in enumerate(lengths)]
    return saved(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))


def test_without_a_model_nothing_is_shared_and_a_note_says_so(tmp_path: Path) -> None:
    path = table(tmp_path, (20, 1), (20, 1))
    trace = load(path, block_size=8)
    assert [r.block_keys for r in trace.requests] == [(0, 1), (2, 3)]
    assert trace.repairs[0].startswith("lengths only: each prompt has blocks of its own")
    assert describe(trace).infinite_hits is None
    out = tmp_path / "own.jsonl"
    write(trace, out)
    assert load(out).has_prefixes is False
    assert describe(load(out)).summary()["infinite_hits"] is None


def test_zipf_prompts_begin_with_one_of_a_few_prefixes(tmp_path: Path) -> None:
    path = table(tmp_path, *[(20, 1)] * 3, (5, 1))
    trace = load(path, block_size=4, sharing="zipf:prefixes=1,tokens=10,share=1")
    # 10 // 4 = 2 blocks of the one prefix; 20 // 4 = 5 blocks a prompt, 5 // 4 = 1 of the short one
    assert [r.block_keys for r in trace.requests] == [
        (0, 1, 2, 3, 4),
        (0, 1, 5, 6, 7),
        (0, 1, 8, 9, 10),
        (0,),
    ]
    assert trace.has_prefixes
    assert trace.repairs == (
        "lengths only: what prompts share was made up by the model"
        " zipf:prefixes=1,exponent=1.0,tokens=10,share=1.0,seed=0",
    )
    same = load(path, block_size=4, sharing=ZipfSharing(prefixes=1, tokens=10, share=1.0))
    assert same == trace


def test_popular_prefixes_are_drawn_more_often(tmp_path: Path) -> None:
    path = table(tmp_path, *[(8, 1)] * 60)
    trace = load(path, block_size=8, sharing="zipf:prefixes=3,exponent=2,tokens=8,share=1,seed=5")
    counts = sorted(
        (sum(r.block_keys == (key,) for r in trace.requests) for key in range(3)), reverse=True
    )
    # 60 draws in proportion to 1, 1/4, 1/9: 44.1, 11.0 and 4.9 on average
    assert counts[0] > 3 * counts[1] / 2 > 0
    assert sum(counts) == 60


def test_turns_begin_with_the_turn_before(tmp_path: Path) -> None:
    path = table(tmp_path, (8, 4), (13, 2), (6, 1), (40, 1))
    trace = load(path, block_size=4, sharing="turns:share=1")
    # The second goes on with the first (8 + 4 < 13), the third is too short for 13 + 2, and the
    # fourth takes the longest that fits: 15 tokens, not 7.
    assert [r.session_id for r in trace.requests] == ["s0", "s0", "s1", "s0"]
    assert [r.block_keys for r in trace.requests] == [
        (0, 1),
        (0, 1, 2),
        (3,),
        (0, 1, 2, 4, 5, 6, 7, 8, 9, 10),
    ]


def test_an_idle_conversation_does_not_go_on(tmp_path: Path) -> None:
    path = table(tmp_path, (8, 1), (8, 1), (8, 1), (20, 1))
    trace = load(path, block_size=8, sharing="turns:share=1,idle_s=0.5")
    assert [r.session_id for r in trace.requests] == ["s0", "s1", "s2", "s3"]


@pytest.mark.parametrize(
    ("sharing", "problem"),
    [
        ("zip:share=1", "unknown sharing model 'zip'. Did you mean 'zipf'? Known: turns, zipf."),
        ("zipf:shares=1", "unknown number of sharing model zipf 'shares'. Did you mean 'share'?"),
        ("zipf:share=2", "share of zipf sharing must be a number of at least 0 and at most 1"),
        ("zipf:prefixes=1.5", "prefixes of sharing model zipf must be a whole number, not '1.5'"),
        ("zipf:share=nan", "share of zipf sharing must be a number of at least 0"),
        ("turns:open=0", "open of turns sharing must be an integer of at least 1"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(tmp_path: Path, sharing: str, problem: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError)) as caught:
        load(table(tmp_path, (8, 1)), sharing=sharing)
    assert str(caught.value).startswith(problem)


def test_a_file_that_says_what_is_shared_needs_no_model(tmp_path: Path) -> None:
    row = '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n'
    with pytest.raises(UserError, match="sharing is for traces of lengths alone"):
        load(saved(tmp_path, row), sharing="zipf")


def test_the_public_table_has_the_published_means(public_traces: Path) -> None:
    info = describe(load(public_traces / "azure" / "AzureLLMInferenceTrace_code.csv"))
    assert info.trace.num_requests == 8_819
    # 2,047.8 in and 27.9 out on average
    assert (round(info.input_lengths["mean"], 1), round(info.output_lengths["mean"], 1)) == (
        2047.8,
        27.9,
    )
