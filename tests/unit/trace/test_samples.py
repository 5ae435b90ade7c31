from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsim.errors import TraceError, UnknownNameError
from kvsim.trace import SAMPLES, load_sample, open_trace, write

if TYPE_CHECKING:
    from pathlib import Path


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


def test_an_unknown_sample_is_told_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_sample("chats")
    assert str(caught.value) == "unknown sample trace 'chats'. Did you mean 'chat'? Known: chat."


def test_a_trace_is_opened_by_its_path_its_name_or_as_it_is(tmp_path: Path) -> None:
    sample = open_trace("sample:chat")
    assert sample == load_sample("chat")
    assert open_trace(sample) is sample
    write(sample, tmp_path / "copy.jsonl")
    assert open_trace(tmp_path / "copy.jsonl").requests == sample.requests
    with pytest.raises(TraceError, match="no-such-file"):
        open_trace("no-such-file.jsonl")
