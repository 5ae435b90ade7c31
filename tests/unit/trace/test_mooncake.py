from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from kvsim.errors import TraceError
from kvsim.trace import load
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from pathlib import Path

GOOD = {"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}


def line(**changes: object) -> str:
    return json.dumps(GOOD | changes) + "\n"


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(lines))
    return path


def test_a_row_becomes_a_request(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        line(timestamp=3000, session_id=7, delay=5, priority="ignored"),
        line(timestamp=3500, input_length=1024, hash_ids=[46, 48], session_id="b"),
        "\n",
    )
    trace = load(path)
    first, second = trace.requests
    assert (trace.name, trace.format, trace.block_size) == ("trace", "mooncake", 512)
    assert trace.partial is PartialRule.COUNT
    assert trace.repairs == ()
    assert [first.arrived_at, second.arrived_at] == [0, 500_000_000]  # (3500 - 3000) ms
    assert [first.block_keys, second.block_keys] == [(46, 47), (46, 48)]
    assert [first.num_input_tokens, first.num_output_tokens] == [655, 52]
    assert [first.session_id, second.session_id] == ["7", "b"]
    assert first.priority == 0
    assert [trace.num_requests, trace.num_references, trace.num_unique_blocks] == [2, 4, 3]


def test_ids_must_fit_the_input_length(tmp_path: Path) -> None:
    # ceil(655 / 512) = 2 and ceil(1024 / 512) = 2 fit; ceil(20 / 512) = 1 and ids of 3 do not
    good = [line(), line(input_length=1024, hash_ids=[0, 1])]
    assert load(written(tmp_path, *good)).num_requests == 2
    with pytest.raises(TraceError, match=r":3: 2 hash_ids do not fit input_length 20.* needs 1$"):
        load(written(tmp_path, *good, line(input_length=20, hash_ids=[0, 1])))
    with pytest.raises(TraceError, match=r":1: 3 hash_ids do not fit input_length 1024"):
        load(written(tmp_path, line(input_length=1024, hash_ids=[0, 1, 2])))


def test_never_drops_the_partial_last_block(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        line(),  # 655 tokens: 1 full block
        line(input_length=1024, hash_ids=[46, 48]),  # 2 full blocks
        line(input_length=20, hash_ids=[49]),  # none
    )
    trace = load(path, partial="never")
    assert [request.block_keys for request in trace.requests] == [(46,), (46, 48), ()]
    assert load(path, partial=PartialRule.NEVER) == trace


def test_another_block_size_is_said_by_the_user_and_checked_against_the_rows(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, line(input_length=20, hash_ids=[1, 2]))
    assert load(path, id_tokens=16).block_size == 16
    with pytest.raises(TraceError, match=r":1: 2 hash_ids do not fit input_length 20"):
        load(path)
    path = written(tmp_path, line(block_size=16, input_length=20, hash_ids=[1, 2]), line())
    assert load(path, limit=1).block_size == 16  # the first row says so
    with pytest.raises(TraceError, match=r":1: block_size is 16 in this row, .* as 512 tokens"):
        load(path, id_tokens=512)
    with pytest.raises(TraceError, match=r":2: 2 hash_ids do not fit input_length 655: at 16 "):
        load(path)


def test_rows_out_of_order_are_sorted_and_reported(tmp_path: Path) -> None:
    stamps = [0, 9, 5, 9, 7]
    path = written(
        tmp_path, *(line(timestamp=at, output_length=i + 1) for i, at in enumerate(stamps))
    )
    trace = load(path)
    # by time; the two at 9 keep the order of the file
    assert [r.num_output_tokens for r in trace.requests] == [1, 3, 5, 2, 4]
    assert [r.request_id for r in trace.requests] == [0, 1, 2, 3, 4]
    assert trace.repairs == ("sorted by time: 2 rows earlier than the row before, first at line 3",)


def test_ids_that_are_no_prefixes_are_interned_and_reported(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        line(hash_ids=[1, 2]),
        line(hash_ids=[3, 2]),  # 2 has two parents
        line(hash_ids=[4, 4]),  # 4 repeats
        line(hash_ids=[1, 2]),
    )
    trace = load(path)
    assert [r.block_keys for r in trace.requests] == [(0, 1), (2, 3), (4, 5), (0, 1)]
    assert trace.repairs == (
        "block ids do not stand for their whole prefix: 4 ids renumbered by (parent, id) into 6"
        " blocks",
    )


def test_a_block_with_two_fills_is_one_block_and_reported(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        line(),  # 655 - 512 = 143 tokens in 47
        line(input_length=1024),  # 512 tokens in 47
        line(input_length=1025, hash_ids=[46, 48, 49]),
        line(input_length=1026, hash_ids=[46, 48, 49]),  # 2 tokens in 49, 1 before
    )
    assert load(path).repairs == (
        "2 blocks filled in part by one row and otherwise by another, taken as full in both, first"
        " at line 2",
    )
    assert load(path, partial="never").repairs == ()


def test_an_empty_answer_is_taken_as_one_token_and_reported(tmp_path: Path) -> None:
    trace = load(written(tmp_path, line(), line(output_length=0)))
    assert [r.num_output_tokens for r in trace.requests] == [52, 1]
    assert trace.repairs == ("output of 0 tokens taken as 1 in 1 row, first at line 2",)


def test_a_limit_reads_the_first_rows_and_hashes_the_whole_file(tmp_path: Path) -> None:
    path = written(tmp_path, line(), line(), "not read")
    assert load(path, limit=2).num_requests == 2
    whole = load(written(tmp_path, line(), line(), line()), limit=1)
    assert whole.num_requests == 1
    assert whole.sha256 == load(path.with_name("trace.jsonl")).sha256


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (line(timestamp=-1), "timestamp must be a number of ms from 0 to 2**53, not -1"),
        (line(timestamp="3"), "timestamp must be a number of ms from 0 to 2**53, not '3'"),
        (line(timestamp=True), "timestamp must be a number of ms from 0 to 2**53, not true"),
        (line(timestamp=None), "timestamp must be a number of ms from 0 to 2**53, not null"),
        (
            line(timestamp=2**53 + 1),
            "timestamp must be a number of ms from 0 to 2**53, not 9007199254740993",
        ),
        (
            line(timestamp=10**50),
            "timestamp must be a number of ms from 0 to 2**53, not a number of more than 40 digits",
        ),
        (
            line(timestamp=[1, 2]),
            "timestamp must be a number of ms from 0 to 2**53, not a list of 2",
        ),
        (line(input_length=0), "input_length must be a whole number from 1 to 2**53, not 0"),
        (line(output_length=-5), "output_length must be a whole number from 0 to 2**53, not -5"),
        (
            line(output_length={}),
            "output_length must be a whole number from 0 to 2**53, not an object of 0",
        ),
        (line(hash_ids="12"), "hash_ids must be a list of whole numbers, not '12'"),
        (line(hash_ids={"a": [1]}), "hash_ids must be a list of whole numbers, not an object of 1"),
        (
            line(hash_ids=[1, "2"]),
            "each of hash_ids must be a whole number from 0 to 2**53, not '2'",
        ),
        (
            line(hash_ids=[True, 2]),
            "each of hash_ids must be a whole number from 0 to 2**53, not true",
        ),
        (
            line(hash_ids=[1, 2.0]),
            "each of hash_ids must be a whole number from 0 to 2**53, not 2.0",
        ),
        (line(hash_ids=[1, -1]), "each of hash_ids must be a whole number from 0 to 2**53, not -1"),
        (
            line(hash_ids=[1, None]),
            "each of hash_ids must be a whole number from 0 to 2**53, not null",
        ),
        (
            line(hash_ids=[1, [2]]),
            "each of hash_ids must be a whole number from 0 to 2**53, not a list of 1",
        ),
        (
            line(hash_ids=[1, 2**60]),
            "each of hash_ids must be a whole number from 0 to 2**53, not 1152921504606846976",
        ),
        (
            line(hash_ids=[]),
            "0 hash_ids do not fit input_length 655: at 512 tokens an id it needs 2",
        ),
        (line(session_id=["x"]), "session_id must be text, not a list of 1"),
        (line(session_id="\ud800"), "session_id must be text, not '\\ud800'"),
        ('{"timestamp": 1}\n', "field 'input_length' is missing; fields seen: 'timestamp'"),
        ("{}\n", "field 'timestamp' is missing; fields seen: none"),
        ("[1]\n", "a row must be a JSON object, not a list of 1"),
        ('"text"\n', "a row must be a JSON object, not 'text'"),
        ("null\n", "a row must be a JSON object, not null"),
        (
            "{'timestamp': 1}\n",
            "not valid JSON: Expecting property name enclosed in double quotes at column 2",
        ),
        (
            line()[:32],
            "not valid JSON: Expecting value at column 33; the file seems to be cut short",
        ),
        (line()[:-1] + line(), "not valid JSON: Extra data at column 81"),
        (line(timestamp=float("nan")), "NaN is not a number; a trace has finite numbers only"),
        (
            line(timestamp=float("-inf")),
            "-Infinity is not a number; a trace has finite numbers only",
        ),
        (
            line().replace("655", "1e400"),
            "input_length must be a whole number from 1 to 2**53, not inf",
        ),
        (line().replace("655", "9" * 5000), "not valid JSON: a number with too many digits"),
        (
            line(hash_ids=0).replace("0}", "[" * 100_000),
            "not a row: brackets are nested too deeply",
        ),
    ],
)
def test_a_bad_row_is_one_line_that_says_where(tmp_path: Path, bad: str, problem: str) -> None:
    path = written(tmp_path, line(), "\n", bad)
    with pytest.raises(TraceError) as caught:
        load(path)
    assert str(caught.value) == f"{path}:3: {problem}"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "counts"),
    [("conversation", (12_031, 288_500, 182_790)), ("synthetic", (3_993, 121_877, 43_924))],
)
def test_the_public_traces_have_the_published_counts(
    public_traces: Path, name: str, counts: tuple[int, int, int]
) -> None:
    started = time.process_time()
    trace = load(public_traces / "mooncake" / f"{name}_trace.jsonl")
    used_s = time.process_time() - started
    assert (trace.num_requests, trace.num_references, trace.num_unique_blocks) == counts
    assert trace.repairs == ()
    assert used_s < 3  # 0.2 s; a tenth of the speed means that something went wrong


def test_a_file_without_permission_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, line())
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    with pytest.raises(TraceError, match="cannot be read: no permission"):
        load(path)
