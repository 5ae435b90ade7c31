from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kvsim.trace import load
from tests.unit.trace.files import problem_of, saved

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def talk(name: str, *turns: str) -> dict[str, object]:
    """Make a conversation; a turn is its role, a colon, and the text."""
    parts = [turn.split(":", 1) for turn in turns]
    return {"id": name, "conversations": [{"from": a, "value": b} for a, b in parts]}


def test_each_answer_makes_a_request_of_all_text_before(tmp_path: Path) -> None:
    text = json.dumps([talk("a", "system:ab", "human:cdef", "gpt:gh", "human:ijkl", "gpt:mnopq")])
    trace = load(saved(tmp_path, text), block_size=4, arrivals="poisson:think_s=0,token_ms=500")
    first, second = trace.requests
    # bytes: abcdef, then abcdefghijkl: 6 and 12 tokens in blocks of 4
    assert [first.num_input_tokens, second.num_input_tokens] == [6, 12]
    assert [first.num_output_tokens, second.num_output_tokens] == [2, 5]
    assert [first.block_keys, second.block_keys] == [(0,), (0, 1, 2)]
    assert [first.session_id, second.session_id] == ["a", "a"]
    assert [first.arrived_at, second.arrived_at] == [0, 10**9]  # 2 tokens of 500 ms, no pause
    assert trace.repairs == (
        "no times in the file: made by the arrival model"
        " poisson:gap_s=10.0,think_s=0.0,token_ms=500.0,seed=0; tokens are those of the tokenizer"
        " bytes",
    )


def test_parts_that_follow_each_other_are_one_conversation(tmp_path: Path) -> None:
    talks = [
        talk("X_0", "human:aaaa", "gpt:bbbb"),
        talk("X_1", "human:cccc", "gpt:dd"),
        talk("X_3", "human:aaaa", "gpt:dd"),  # part 2 is missing: it cannot go on
        talk("Y_0", "human:aaaacccc", "gpt:dd"),
    ]
    trace = load(saved(tmp_path, json.dumps(talks)), block_size=4)
    by_session = {(r.session_id, r.num_input_tokens): r.block_keys for r in trace.requests}
    assert (
        by_session
        == {
            ("X", 4): (by_session["X", 4][0],),
            ("X", 12): (by_session["X", 4][0], *by_session["X", 12][1:]),  # aaaabbbbcccc
            ("Y", 8): (by_session["X", 4][0], *by_session["Y", 8][1:]),
        }
    )
    assert trace.num_requests == 4


def test_a_conversation_that_begins_with_the_model_has_that_as_context(tmp_path: Path) -> None:
    talks = [talk("a", "gpt:aaaa", "human:bbbb", "gpt:c"), talk("b", "human:d")]
    trace = load(saved(tmp_path, json.dumps(talks)), block_size=4)
    assert [(r.num_input_tokens, r.num_output_tokens) for r in trace.requests] == [(8, 1)]
    assert trace.repairs[1] == (
        "1 last message without an answer left out, first in the conversation at line 1"
    )


class Words:
    """A token a word, the longest words alike."""

    name = "words"

    def encode(self, text: str) -> Sequence[int]:
        return [len(word) for word in text.split()]


def test_a_tokenizer_of_the_user_s_own_is_used(tmp_path: Path) -> None:
    text = json.dumps([talk("a", "human:one two three", "gpt:four five")])
    trace = load(saved(tmp_path, text), tokenizer=Words(), block_size=2)
    assert [(r.num_input_tokens, r.num_output_tokens) for r in trace.requests] == [(3, 2)]
    assert trace.repairs[0].endswith("the tokenizer words")


def test_a_truncated_download_says_where(tmp_path: Path) -> None:
    lines = [json.dumps(talk(str(i), "human:hello", "gpt:bye")) for i in range(3)]
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    assert load(saved(tmp_path, text)).num_requests == 3
    cut = problem_of(saved(tmp_path, text[:-40]))
    assert cut.startswith(":4: not valid JSON: ")
    assert cut.endswith("the file seems to be cut short")
    # cut between two conversations
    cut = problem_of(saved(tmp_path, text[: text.index(lines[1]) - 2]))
    assert cut == ":2: the file ends within the array: it seems to be cut short"


def test_a_long_array_is_read_piece_by_piece(tmp_path: Path) -> None:
    talks = [talk(str(i), "human:" + "x" * 50_000, "gpt:\u00e9" + "y" * 9) for i in range(30)]
    path = saved(tmp_path, json.dumps(talks, ensure_ascii=False, indent=1))  # 1.5 MB: six pieces
    trace = load(path, block_size=1000)
    assert trace.num_requests == 30
    assert {r.num_input_tokens for r in trace.requests} == {50_000}
    assert {r.num_output_tokens for r in trace.requests} == {11}  # the accent has two bytes
    assert trace.num_unique_blocks == 50


def test_a_bad_file_is_one_line(tmp_path: Path) -> None:
    for content, problem in (
        ([5], ":1: a conversation must be a JSON object, not 5"),
        ([{"id": "a"}], ":1: field 'conversations' is missing; fields seen: 'id'"),
        ([talk("a", "robot:x")], ":1: from must be one of "),
        ([talk("a", "human:\ud800")], ":1: value must be text, not '\\ud800'"),
        ([{"id": ["a"], "conversations": []}], ":1: id must be text, not a list of 1"),
        ([], ": there is no request in it"),
        ({}, ":1: the file must be a JSON array of conversations"),
    ):
        path = saved(tmp_path, json.dumps(content))
        assert problem_of(path, format="sharegpt").startswith(problem)
    for text, problem in (
        ("[1 2]", ":1: a conversation must be"),
        ("[{}\n}", ":1: field 'conversations' is missing"),
        ('[{"id":"a","conversations":[]}\n{}]', ":2: not valid JSON: expected , or ]"),
        ('[{"id":"a","conversations":[]}]\n\n!', ":3: not valid JSON: extra data"),
        ("[" * 100_000, ":1: not JSON: brackets are nested too deeply"),
        ("[NaN]", ":1: NaN is not a number"),
    ):
        assert problem_of(saved(tmp_path, text), format="sharegpt").startswith(problem)
