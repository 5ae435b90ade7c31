from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.errors import TraceError, UnknownNameError
from kvsim.trace import SAMPLES, load_sample, open_trace, synthesize, write

TRACES = Path(__file__).parents[3] / "traces"


def test_the_chat_sample_has_the_documented_numbers() -> None:
    trace = load_sample()
    assert (trace.name, trace.format, trace.block_size) == ("chat", "kvsim", 64)
    assert (trace.num_requests, trace.num_references, trace.num_unique_blocks) == (
        2_000,
        116_117,
        35_003,
    )
    assert trace.repairs == ()
    assert len({request.session_id for request in trace.requests}) == 768
    assert round(trace.requests[-1].arrived_at / 60e9, 1) == 10.6


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_can_be_read(name: str) -> None:
    assert load_sample(name).num_requests


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("chat", {"seed": 1}),
        ("rag", {"seed": 2}),
        ("agents", {"seed": 3, "num_requests": 1_200, "block_size": 256}),
    ],
)
def test_a_sample_is_made_again_byte_for_byte(
    tmp_path: Path, name: str, arguments: dict[str, int]
) -> None:
    write(synthesize(name, **arguments), tmp_path / "again.jsonl")  # type: ignore[arg-type]
    made = (tmp_path / "again.jsonl").read_bytes()
    assert made == (TRACES / SAMPLES[name]).read_bytes()
    assert len(made) < 1_000_000


@pytest.mark.parametrize(
    ("name", "requests", "references", "unique", "sessions"),
    [("rag", 2_000, 82_365, 43_553, 1_360), ("agents", 1_200, 123_776, 11_588, 182)],
)
def test_the_other_samples_have_the_documented_numbers(
    name: str, requests: int, references: int, unique: int, sessions: int
) -> None:
    trace = load_sample(name)
    found = (trace.num_requests, trace.num_references, trace.num_unique_blocks)
    assert found == (requests, references, unique)
    assert len({request.session_id for request in trace.requests}) == sessions
    assert open_trace(f"sample:{name}") == trace


def test_an_unknown_sample_is_told_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_sample("chats")
    assert (
        str(caught.value)
        == "unknown sample trace 'chats'. Did you mean 'chat'? Known: agents, chat, rag."
    )


def test_a_trace_is_opened_by_its_path_its_name_or_as_it_is(tmp_path: Path) -> None:
    sample = open_trace("sample:chat")
    assert sample == load_sample("chat")
    assert open_trace(sample) is sample
    write(sample, tmp_path / "copy.jsonl")
    assert open_trace(tmp_path / "copy.jsonl").requests == sample.requests
    with pytest.raises(TraceError, match="no-such-file"):
        open_trace("no-such-file.jsonl")
